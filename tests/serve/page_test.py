"""The page at / in a real browser: it shows the model, the format table, the memory map and live figures, and
answers a message.

    page_test.py PROGRAM MODEL

Skipped (exit 77) where no Chromium is found (Debian package chromium).
"""
import base64, json, os, re, shutil, socket, struct, subprocess, sys, tempfile, time, urllib.request

sys.path.insert(0, os.path.dirname(__file__))
BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)
if not BROWSER:
    print("skipped: no Chromium here (Debian package chromium)")
    sys.exit(77)
from server_under_test import Server


class Page:
    """Just enough of the DevTools protocol: evaluate an expression in the first page."""

    def __init__(self, url):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={self.folder.name}", url],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file, until = f"{self.folder.name}/DevToolsActivePort", time.time() + 60
        while not (os.path.exists(port_file) and open(port_file).read().strip()):
            if time.time() > until: raise SystemExit("fault: the browser did not start")
            time.sleep(0.1)
        port = int(open(port_file).read().split()[0])
        while True:
            pages = [p for p in json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10)) if p["type"] == "page"]
            if pages: break
            time.sleep(0.1)
        path = re.sub(r"^ws://[^/]+", "", pages[0]["webSocketDebuggerUrl"])
        self.s = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.s.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.f = self.s.makefile("rb")
        while self.f.readline().strip(): pass
        self.n = 0
        self.seen = []
        self.call("Log.enable")
        self.call("Runtime.enable")

    def call(self, method, **params):
        self.n += 1
        data = json.dumps({"id": self.n, "method": method, "params": params}).encode()
        head = struct.pack("!BB", 0x81, 0x80 | len(data)) if len(data) < 126 else struct.pack("!BBH", 0x81, 0xFE, len(data))
        self.s.sendall(head + b"\0\0\0\0" + data)
        while True:
            message = b""
            while True:
                first, second = self.f.read(2)
                n = second & 127
                if n == 126: n = struct.unpack("!H", self.f.read(2))[0]
                elif n == 127: n = struct.unpack("!Q", self.f.read(8))[0]
                message += self.f.read(n)
                if first & 128: break
            m = json.loads(message)
            if m.get("id") == self.n: return m.get("result", m)
            self.seen.append(m)

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True).get("result", {}).get("value")

    def wait(self, expression, what, seconds=60):
        until = time.time() + seconds
        while time.time() < until:
            v = self.value(expression)
            if v: return v
            time.sleep(0.1)
        raise SystemExit(f"fault: {what}: {expression} stayed {v!r}")

    def close(self):
        self.process.terminate()
        self.process.wait(20)


def main():
    s = Server(sys.argv[1], sys.argv[2])
    page = Page(s.url + "/")
    try:
        page.wait("document.title === 'qengine' && document.getElementById('model').textContent.includes('m')", "the model's name")
        rows = page.wait("document.querySelectorAll('#formats tr').length", "the format table")
        parts = page.wait("document.querySelectorAll('#bar i').length", "the memory map")
        page.wait("document.getElementById('live').textContent.includes('KV cache in use')", "live figures")
        page.value("document.getElementById('text').value = 'Tell me about the sea.'; document.getElementById('form').requestSubmit()")
        page.wait("document.querySelectorAll('.msg.user').length === 1 && !document.getElementById('send').disabled", "the answer ended", 120)
        answer = page.wait("(document.querySelector('.msg.assistant') || {}).textContent", "the answer has text")
        tokens = page.wait("+[...document.querySelectorAll('#live dd')].pop().textContent", "tokens are counted")
        outside = page.value("performance.getEntriesByType('resource').filter(r => !r.name.startsWith(location.origin)).length")
        errors = [m for m in page.seen if m.get("method") == "Runtime.exceptionThrown" or (m.get("method") == "Log.entryAdded" and m["params"]["entry"]["level"] == "error" and "favicon" not in json.dumps(m))]
        if outside: raise SystemExit(f"fault: {outside} resources come from outside")
        if errors: raise SystemExit(f"fault: {errors[:3]}")
        print(f"{rows} formats, {parts} parts of memory, answer of {len(answer)} characters, {tokens} tokens")
    finally:
        page.close()
        s.stop()


main()
