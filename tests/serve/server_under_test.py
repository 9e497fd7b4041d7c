"""One qengine server for a test: started on a free port, asked for its metrics, stopped."""
import asyncio, json, os, re, signal, subprocess, tempfile, time, urllib.error, urllib.request


class Server:
    def __init__(self, program, model, *flags, env=None):
        self.log = tempfile.NamedTemporaryFile(prefix="qengine-serve-", suffix=".log", delete=False)
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--served-model-name", "m", "--device", "cpu", *flags],
                                        stdout=subprocess.DEVNULL, stderr=self.log, env={**os.environ, **(env or {})})
        self.pid = self.process.pid
        until = time.time() + 120
        while True:
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.text())
            if found: break
            if self.process.poll() is not None or time.time() > until: raise SystemExit("the server did not come up:\n" + self.text())
            time.sleep(0.02)
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def text(self):
        return open(self.log.name, errors="replace").read()

    def get(self, path):
        return urllib.request.urlopen(self.url + path, timeout=60).read().decode()

    def post(self, path, body):
        return json.load(urllib.request.urlopen(urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=300))

    def metrics(self):
        """{name: sum over its series}"""
        out = {}
        for line in self.get("/metrics").splitlines():
            if line.startswith("#"): continue
            name, value = line.rsplit(" ", 1)
            name = name.split("{")[0]
            out[name] = out.get(name, 0) + float(value)
        return out

    def rss(self):
        return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{self.pid}/status").read())[1]) * 1024

    def idle(self, seconds=60):
        """Waits until nothing runs or waits; the metrics then."""
        until = time.time() + seconds
        while True:
            m = self.metrics()
            if m["vllm:num_requests_running"] == 0 and m["vllm:num_requests_waiting"] == 0: return m
            if time.time() > until: raise SystemExit(f"still running {m['vllm:num_requests_running']}, waiting {m['vllm:num_requests_waiting']} after {seconds} s")
            time.sleep(0.05)

    def stop(self, seconds=60):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def slowed(drifting, ms):
    """Flags with which each step takes `ms` longer, so that what a test does meanwhile falls into the middle of an answer on any machine.
    `drifting`: the folder of the plugin of that name (tests/wrong_plugins)."""
    return ["--plugin-path", drifting, "--trust", "any", "--plugin", "drifting", "--plugin-opt", f"drifting.slow_ms={ms}"]


def admin(s, method, path, data=None, headers={}):
    """What an admin route says: (status, JSON)"""
    r = urllib.request.Request(s.url + path, None if data is None and method == "GET" else json.dumps(data or {}).encode(), {"Content-Type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(r, timeout=120) as f: return f.status, json.load(f)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


async def request(port, method, path, body=b"", headers=(), slow=0.0, leave_after=None, read_slowly=0.0):
    """One request on a connection of its own: (status, headers, body). `leave_after` bytes of the answer
    the client hangs up: status None. `slow`: seconds between pieces of the body it sends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write((f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n" + "".join(h + "\r\n" for h in headers) + "\r\n").encode())
        if slow:
            for i in range(0, len(body), max(1, len(body) // 5)):
                writer.write(body[i:i + max(1, len(body) // 5)])
                await writer.drain()
                await asyncio.sleep(slow)
        else:
            writer.write(body)
        try:
            await writer.drain()
        except ConnectionError:
            pass  # refused before the body was read
        if leave_after == 0: return None, {}, b""
        data = b""
        while True:
            piece = await reader.read(256 if read_slowly else 65536)
            if not piece: break
            data += piece
            if leave_after is not None and len(data) >= leave_after: return None, {}, data
            if read_slowly: await asyncio.sleep(read_slowly)
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.decode("latin1").split("\r\n")
        fields = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        if fields.get("transfer-encoding") == "chunked":
            out = b""
            while rest:
                size, _, rest = rest.partition(b"\r\n")
                n = int(size, 16)
                if n == 0: break
                out += rest[:n]
                rest = rest[n + 2:]
            else:
                return -1, fields, out  # cut off
            rest = out
        return int(lines[0].split()[1]), fields, rest
    finally:
        writer.close()


def events(body):
    """The JSON of an event stream, and whether [DONE] came once, at the end."""
    parts = [p for p in body.decode().split("\n\n") if p and not p.startswith(":")]
    done = parts.count("data: [DONE]") == 1 and parts[-1] == "data: [DONE]"
    return [json.loads(p[6:]) for p in parts if p != "data: [DONE]"], done
