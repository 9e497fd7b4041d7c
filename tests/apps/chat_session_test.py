"""`qengine run --chat` on a terminal: turns, /new, an unknown command, Ctrl-C during an answer, history, /exit.

    chat_session_test.py PROGRAM MODEL
"""
import os, pty, re, select, signal, sys, tempfile, termios, time

faults = []


class Terminal:
    def __init__(self, *command, home):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(XDG_STATE_HOME=home, TERM="xterm", NO_COLOR="1", LC_ALL="C.UTF-8")
            os.execv(command[0], command)
        self.seen = ""

    def until(self, pattern, what, seconds=60):
        begin, end = len(self.seen), time.time() + seconds
        while not re.search(pattern, self.seen[self.at:], re.S):
            if time.time() > end or not self.read(): raise SystemExit(f"fault: {what}: no {pattern!r} in\n{self.seen[self.at:]!r}")
        self.at = len(self.seen)

    at = 0

    def read(self):
        if not select.select([self.fd], [], [], 0.2)[0]: return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def type(self, text): os.write(self.fd, text.encode())

    def until_keys_are_read(self, seconds=60):
        """The line editor shows its prompt before it takes the terminal over: what is typed between the two is the terminal's."""
        end = time.time() + seconds
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:
            if time.time() > end: raise SystemExit("fault: the line editor does not take the terminal")
            time.sleep(0.005)

    def end(self):
        end = time.time() + 60
        while time.time() < end:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid: return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        return "did not end"


def main():
    program, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as home:
        t = Terminal(program, "run", model, "--chat", "--device", "cpu", "--temperature", "0", "--max-tokens", "16", home=home)
        t.until(r"/exit ends.*> ", "the prompt")
        t.type("Good morning é\n")
        t.until(r"\d+ tokens, [\d.]+ tok/s\s+.*> ", "an answer")
        t.type("/frobnicate\n")
        t.until(r"unknown: /frobnicate.*> ", "an unknown command")
        t.type("/new\n")
        t.until(r"> ", "/new")
        t.type("/exit\n")
        if (status := t.end()) != 0: faults.append(f"/exit ended with {status}")
        history = os.path.join(home, "qengine/chat_history")
        if os.path.exists(history) and os.stat(history).st_mode & 0o077: faults.append("others can read the history")

        # Ctrl-C: the answer stops, the session stays. At the prompt it would end the program, so a model that was
        # done before the key arrived (130) gets another try.
        for _ in range(40):
            t = Terminal(program, "run", model, "--chat", "--device", "cpu", "--threads", "1", "--temperature", "1", "--ignore-eos", "--max-tokens", "100000", home=home)
            t.until(r"> ", "the prompt again")
            t.type("Go on and on\n")
            t.until(r"on and on\r?\n.", "the beginning of an answer")
            t.type("\x03")
            try:
                t.until(r"\r\n> ", "the prompt after Ctrl-C")  # figures stand before it from the second token on
            except SystemExit:
                if (status := t.end()) == 130: continue
                raise
            t.until_keys_are_read()
            t.type("\x04")  # Ctrl-D
            if (status := t.end()) != 130: break
        if status != 0: faults.append(f"the end of the input ended with {status}")
    for f in faults: print("fault:", f)
    sys.exit(1 if faults else 0)


main()
