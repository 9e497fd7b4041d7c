"""The routes of whoever runs the server, on a socket of their own.

    admin_test.py PROGRAM MODEL

Only the server's user can open the socket, no key is asked for there, and the port refuses what it used to answer unless there are admin
keys.
"""
import http.client, json, os, socket, stat, subprocess, sys, tempfile

sys.path.insert(0, os.path.dirname(__file__))
from server_under_test import Server, admin

faults = []


def check(ok, what):
    if not ok: faults.append(what)
    return ok


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(self.path)


def by_socket(path, method, route, data=None, headers={}):
    c = UnixConnection(path)
    c.request(method, route, None if data is None else json.dumps(data), {"Content-Type": "application/json", **headers})
    r = c.getresponse()
    body = r.read()
    return r.status, json.loads(body) if body.startswith(b"{") else body.decode()


def main():
    program, model = map(os.path.abspath, sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "admin.sock")
        profile = os.path.join(folder, "q.toml")
        open(profile, "w").write(f'schema = 1\n[server]\nadmin_uds = "admin.sock"\n')  # relative to the profile
        s = Server(program, model, "--config", profile, "--threads", "1")
        mode = os.stat(path)
        check(stat.S_ISSOCK(mode.st_mode) and stat.S_IMODE(mode.st_mode) == 0o600, f"the socket's mode is {oct(mode.st_mode)}")

        # Who may ask where.
        code, r = admin(s, "GET", "/admin/status")
        check(code == 403 and r["error"]["code"] == "admin_disabled" and "--admin-uds" in r["error"]["message"], f"status on the port: {code} {r}")
        code, r = by_socket(path, "GET", "/admin/status")
        check(code == 200 and r["backend"], f"status on the socket: {code} {r}")
        code, r = by_socket(path, "POST", "/v1/completions", {"prompt": "a"})
        check(code == 404 and s.url in r["error"]["message"], f"a completion on the socket: {code} {r}")
        check(by_socket(path, "GET", "/health")[0] == 200 and "vllm:" in by_socket(path, "GET", "/metrics")[1], "pages on the socket")
        for where in (["--url", "unix:" + path], ["--config", profile]):
            c = subprocess.run([program, "canary", "status", *where], capture_output=True, text=True)
            check(c.returncode == 0 and "no [canary]" in c.stdout, f"canary status {where}: {c.returncode} {c.stdout} {c.stderr}")

        # What the routes do, they do there too.
        code, r = by_socket(path, "POST", "/admin/reload", {})
        check(code == 200 and r["result"] == "unchanged", f"reload on the socket: {code} {r}")
        code, r = by_socket(path, "POST", "/admin/switch", {"to": "nobody"})
        check(code == 422 and "nobody" in r["message"], f"a switch to nobody on the socket: {code} {r}")
        check(by_socket(path, "GET", "/admin/status", headers={"Origin": "http://elsewhere.example"})[0] == 200, "no page can open the socket, so whatever it says of itself does not matter")
        check(s.stop() == 0 and not os.path.exists(path), "SIGTERM leaves the socket behind")

        # With admin keys the port answers too; on the socket nobody needs one, whatever clients need.
        open(os.path.join(folder, "keys"), "w").write("clients-key\n")
        open(os.path.join(folder, "admins"), "w").write("admins-key\n")
        s = Server(program, model, "--config", profile, "--threads", "1", "--api-key-file", os.path.join(folder, "keys"), "--admin-key-file", os.path.join(folder, "admins"))
        for key, want in ((None, 401), ("clients-key", 401), ("admins-key", 200)):
            code, r = admin(s, "GET", "/admin/status", None, {"Authorization": f"Bearer {key}"} if key else {})
            check(code == want, f"status on the port with {key}: {code} {r}")
        check(by_socket(path, "GET", "/admin/status")[0] == 200, "status on the socket without a key")
        check(s.stop() == 0, "SIGTERM with keys")

        # A server that was killed leaves its socket; the next one takes it.
        s = Server(program, model, "--config", profile, "--threads", "1")
        s.process.kill()
        s.process.wait(60)
        check(os.path.exists(path), "a killed server cannot have removed its socket")
        s = Server(program, model, "--config", profile, "--threads", "1")
        check(by_socket(path, "GET", "/admin/status")[0] == 200, "status after a restart")
        check(s.stop() == 0, "SIGTERM after a restart")
        c = subprocess.run([program, "canary", "status", "--url", "unix:" + path], capture_output=True, text=True)
        check(c.returncode == 7 and "E505" in c.stderr, f"no server: {c.returncode} {c.stderr}")
        c = subprocess.run([program, "serve", model, "--port", "0", "--admin-uds", "/nowhere/admin.sock"], capture_output=True, text=True)
        check(c.returncode == 7 and "E501" in c.stderr and "--admin-uds" in c.stderr, f"no such folder: {c.returncode} {c.stderr}")
    for f in faults[:20]: print("fault:", f)
    print(f"{len(faults)} faults")
    sys.exit(1 if faults else 0)


main()
