"""A share of the traffic goes to a second backend, which is compared with the first and sent home by itself.

    canary_test.py PROGRAM MODEL DRIFTING

A good canary (online FP8) gets its share, sticky by user, passes, and goes on where it was after a restart. One with slightly wrong
numbers passes the check of a load, and is sent home by the divergence on live prompts within min_requests of its own. One that stops
computing is sent home at once, and the requests that it had not begun to answer are answered by the other. One that is slow is sent home for its
latency, one that does not end the forms it is asked for or that people do not like for that. Hands, refusals.
"""
import asyncio, hashlib, json, os, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(__file__))
from server_under_test import Server, admin, events, request

faults = []
PROMPTS = ["Once upon a time there was", "The list of all the", "A function that returns", "In this section the", "Return the number of"]


def check(ok, what):
    if not ok: faults.append(what)
    return ok


def canary(s): return admin(s, "GET", "/admin/status")[1]["canary"]


def until(f, seconds=60):
    end = time.time() + seconds
    while True:
        x = f()
        if x or time.time() > end: return x
        time.sleep(0.02)


def profile(folder, a, canary_backend, percent=50, more="", error=0.35, stable="bf16", kl=0.75, favour=(0, 0), ttft=50, itl=50):
    sha = hashlib.sha256(open(os.path.join(a[2], "drifting.so"), "rb").read()).hexdigest()
    path = os.path.join(folder, "q.toml")
    open(path + ".new", "w").write(f'''schema = 1
[model]
path = "{a[1]}"
max_model_len = 1024
[engine]
kv_cache_memory_bytes = "64MiB"
[plugins]
paths = ["{a[2]}"]
[[plugins.allow]]
id = "test.drifting"
sha256 = "{sha}"
[[backend]]
name = "bf16"
plugin = "bf16_ref"
[[backend]]
name = "fp8"
plugin = "fp8_online:fp8_per_channel"
[[backend]]
name = "slightly"
plugin = "drifting"
[backend.options.drifting]
error = {error}
[[backend]]
name = "late"
plugin = "drifting"
[backend.options.drifting]
nan_after = 2500
[[backend]]
name = "slow"
plugin = "drifting"
[backend.options.drifting]
slow_ms = 40
[[backend]]
name = "ends"
plugin = "drifting"
[backend.options.drifting]
favour = {favour[0]}
[[backend]]
name = "endless"
plugin = "drifting"
[backend.options.drifting]
favour = {favour[1]}
[server]
active_backend = "{stable}"
[gates]
kl_mean_fail = {kl}
ppl_ratio_fail = {max(1.5, kl)}
[canary]
backend = "{canary_backend}"
percent = {percent}
sticky = "header:x-user-id"
min_requests = 40
state_file = "{folder}/canary.json"
{more}
[canary.abort_if]
ttft_p95_ratio = {ttft}
itl_p95_ratio = {itl}
shadow_kl_mean = 0.01
''')
    os.rename(path + ".new", path)
    return path


async def ask(s, i, user=None, headers=(), stream=True, n=8, more={}):
    """(status, arm, backend, id, whole)"""
    h = list(headers) + ([f"x-user-id: {user}"] if user else [])
    status, fields, data = await request(s.port, "POST", "/v1/completions", json.dumps({"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": stream, **more}).encode(), headers=h)
    if stream and status == 200:
        chunks, done = events(data)
        whole = done and not any("error" in c for c in chunks)
        return status, fields.get("x-qengine-arm"), fields.get("x-qengine-backend"), chunks[0].get("id") if chunks else None, whole
    return status, fields.get("x-qengine-arm"), fields.get("x-qengine-backend"), None, status == 200


async def many(s, count, users=None, **kw):
    out = []
    for at in range(0, count, 8):
        out += await asyncio.gather(*[ask(s, at + j, f"u{(at + j) % users}" if users else None, **kw) for j in range(min(8, count - at))])
    return out


async def good_one(a, folder):
    s = Server(a[0], a[1], "--config", profile(folder, a, "fp8", more="shadow_fraction = 1.0\nallow_pin = true"), "--threads", "1")
    check(until(lambda: canary(s)["state"] == "running"), f"the canary does not run: {canary(s)}")
    got = await many(s, 160, users=40)
    arms = {}
    for i, (status, arm, backend, _, whole) in enumerate(got):
        check(status == 200 and whole and (arm, backend) in (("stable", "bf16"), ("canary", "fp8")), f"an answer: {status} {arm} {backend}")
        check(arms.setdefault(i % 40, arm) == arm, f"user {i % 40} changed sides")
    share = sum(arm == "canary" for arm in arms.values())
    check(8 <= share <= 32, f"{share} of 40 users went to a canary of 50 %")
    c = until(lambda: canary(s) if canary(s)["state"] == "passed" else None)
    check(c and c["verdict"] == "pass" and c["shadow"]["prompts"] >= 3, f"a good canary did not pass: {canary(s)}")
    # A pin where it is allowed; feedback counts for the side that answered, once.
    got = await asyncio.gather(*[ask(s, i, f"u{i}", headers=["x-qengine-arm: canary"]) for i in range(4)])
    check(all(g[1] == "canary" for g in got), f"pinned: {got}")
    request_id = got[0][3]
    check(admin(s, "POST", "/admin/feedback", {"request_id": request_id, "verdict": "bad"})[0] == 200, "feedback")
    check(admin(s, "POST", "/admin/feedback", {"request_id": request_id, "verdict": "bad"})[0] == 200, "feedback twice")
    check(canary(s)["canary"]["feedback_bad"] == 1, f"feedback: {canary(s)['canary']}")
    check(admin(s, "POST", "/admin/feedback", {"request_id": "cmpl-nobody", "verdict": "good"})[0] == 404, "feedback on an unknown request")
    check(admin(s, "POST", "/admin/feedback", {"request_id": request_id, "verdict": "meh"})[0] == 400, "feedback that is none")
    m = s.get("/metrics")
    for line in ('qengine:canary_percent{arm="canary"} 50', 'qengine:feedback_total{arm="canary",verdict="bad"}', 'qengine:requests_total{arm="canary",status="ok"}', 'qengine:arm_ttft_seconds_count{arm="canary"}',
                 'qengine:backend_info{backend="fp8",arm="canary"'):
        check(line in m, f"no {line} in the metrics")
    # From the command line, as an operator.
    r = subprocess.run([a[0], "canary", "status", "--url", s.url], capture_output=True, text=True)
    check(r.returncode == 0 and "fp8" in r.stdout and "passed" in r.stdout, f"canary status: {r.returncode} {r.stdout} {r.stderr}")
    r = subprocess.run([a[0], "canary", "status", "--url", s.url, "--json"], capture_output=True, text=True)
    check(r.returncode == 0 and json.loads(r.stdout)["canary"]["state"] == "passed", f"canary status --json: {r.stdout} {r.stderr}")
    before = canary(s)
    check(s.stop() == 0, "SIGTERM with a canary")
    # Again: the same people, the same figures, no verdict lost.
    s = Server(a[0], a[1], "--config", profile(folder, a, "fp8", more="shadow_fraction = 1.0\nallow_pin = true"), "--threads", "1")
    c = until(lambda: canary(s) if canary(s)["state"] == "passed" else None)
    check(c and c["id"] == before["id"] and c["canary"]["requests"] == before["canary"]["requests"] and c["shadow"]["prompts"] >= before["shadow"]["prompts"], f"after a restart: {c}, before {before}")
    got = await many(s, 40, users=40)
    check(all(arms[i] == g[1] for i, g in enumerate(got)), "users changed sides in a restart")
    # By hand: another share, home, back again.
    r = subprocess.run([a[0], "canary", "set", "100", "--url", s.url], capture_output=True, text=True)
    check(r.returncode == 0 and all(g[1] == "canary" for g in await many(s, 16)), f"canary set 100: {r.stdout} {r.stderr}")
    r = subprocess.run([a[0], "canary", "abort", "--url", s.url], capture_output=True, text=True)
    check(r.returncode == 0 and all(g[1] == "stable" for g in await many(s, 16)), f"canary abort: {r.stdout} {r.stderr}")
    check(until(lambda: len(admin(s, "GET", "/admin/status")[1]["backends"]) == 1), "an aborted canary keeps its memory")
    check(admin(s, "POST", "/admin/canary", {"percent": 30})[0] == 200 and until(lambda: canary(s)["state"] == "running"), f"set after abort: {canary(s)}")
    # Everything goes to it: a switch to what is loaded loads nothing.
    code, r = admin(s, "POST", "/admin/switch", {"to": "fp8"})
    check(code == 200 and "load_s" not in r, f"the canary becomes the stable one: {code} {r}")
    until(lambda: len(admin(s, "GET", "/admin/status")[1]["backends"]) == 1)
    status = admin(s, "GET", "/admin/status")[1]
    check(status["backend"] == "fp8" and canary(s)["state"] == "off" and (await ask(s, 0))[2] == "fp8", f"after the switch: {status}")
    check(s.stop() == 0, "SIGTERM after the switch")
    os.remove(f"{folder}/canary.json")


async def slightly_wrong(a, folder):
    s = Server(a[0], a[1], "--config", profile(folder, a, "slightly", more="shadow_fraction = 1.0"), "--threads", "1", env={"QENGINE_LOG_LEVEL": "info"})
    check(until(lambda: canary(s)["state"] == "running"), f"the slightly wrong one must pass the check of a load: {canary(s)}")
    sent, after = 0, 0
    while sent < 400:
        got = await many(s, 8)
        sent += sum(g[1] == "canary" for g in got)
        if canary(s)["state"] == "home": break
    c = canary(s)
    check(c["state"] == "home" and c["verdict"] == "fail" and [r["gate"] for r in c["reasons"]] == ["shadow_kl_mean"], f"not sent home for its divergence: {c}")
    check(40 <= c["canary"]["requests"] <= 64 and sent <= 64, f"sent home after {c['canary']['requests']} requests of 40, {sent} seen")
    check(all(g[1] == "stable" and g[4] for g in await many(s, 24)), "requests still go to a canary that was sent home")
    check("slightly is sent home after" in s.text() and "shadow_kl_mean" in s.text(), "the log does not say why")
    told = lambda m: 'qengine:canary_returned_total{reason="shadow_kl_mean"} 1' in m and 'qengine:canary_percent{arm="canary"} 0' in m
    check(until(lambda: told(s.get("/metrics")), 5), "the metrics do not say why")
    check(until(lambda: len(admin(s, "GET", "/admin/status")[1]["backends"]) == 1), "a canary that was sent home keeps its memory")
    # A restart does not forget it.
    check(s.stop() == 0, "SIGTERM after it")
    s = Server(a[0], a[1], "--config", profile(folder, a, "slightly", more="shadow_fraction = 1.0"), "--threads", "1")
    check(canary(s)["state"] == "home" and all(g[1] == "stable" for g in await many(s, 16)), f"after a restart: {canary(s)}")
    check(s.stop() == 0, "SIGTERM at the end")
    os.remove(f"{folder}/canary.json")
    if c["reasons"]: print(f"slightly wrong numbers: sent home after {c['canary']['requests']} requests, mean KL {c['reasons'][0]['value']:.3g}, limit {c['reasons'][0]['limit']:.3g}", flush=True)


async def stops_computing(a, folder):
    s = Server(a[0], a[1], "--config", profile(folder, a, "late"), "--threads", "1")
    check(until(lambda: canary(s)["state"] == "running"), f"the late one does not run: {canary(s)}")
    lost = sent = 0
    while sent < 2000 and canary(s)["state"] != "home":  # it may pass before it breaks, and is watched on
        got = await many(s, 16, stream=False, n=16)
        sent += len(got)
        lost += sum(not g[4] for g in got)
    c = canary(s)
    check(c["state"] == "home" and c["reasons"][0]["gate"] == "nonfinite", f"not sent home for its NaNs: {c}")
    check(lost == 0, f"{lost} of {sent} requests were lost to a canary though nothing of their answers had been sent")
    check(until(lambda: 'qengine:canary_returned_total{reason="nonfinite"} 1' in s.get("/metrics"), 5), "the metrics do not say nonfinite")
    check(s.stop() == 0, "SIGTERM after the late one")
    os.remove(f"{folder}/canary.json")


# Requests until it is sent home, eight at a time; `after` is shown each batch. What it was sent home for, and after how many.
async def until_home(s, what, after=None, most=800, **kw):
    check(until(lambda: canary(s)["state"] == "running"), f"{what} does not run: {canary(s)}")
    sent = 0
    while sent < most and canary(s)["state"] == "running":
        got = await many(s, 8, **kw)
        check(all(g[0] == 200 and g[4] for g in got), f"{what}: an answer is not whole: {got}")
        sent += len(got)
        if after: after(got)
    c = canary(s)
    check(c["state"] == "home" and c["verdict"] == "fail", f"{what} is not sent home after {sent} requests: {c}")
    gates = [r["gate"] for r in c.get("reasons", [])]
    for gate in gates: check(until(lambda: f'qengine:canary_returned_total{{reason="{gate}"}} 1' in s.get("/metrics")), f"{what}: the metrics do not say {gate}")
    if gates: print(f"{what}: sent home after {c['canary']['requests']} requests for {gates[0]} {c['reasons'][0]['value']:.3g}, limit {c['reasons'][0]['limit']:.3g}", flush=True)
    return gates


# Each step of it sleeps: however slow the machine is, that is far more than a quarter of a step of this model.
async def slow(a, folder):
    s = Server(a[0], a[1], "--config", profile(folder, a, "slow", ttft=1000, itl=1.25), "--threads", "1")
    gates = await until_home(s, "a slow canary")
    check(gates == ["itl_p95_ratio"], f"a slow canary is sent home for {gates}")
    # The other limit, without a restart: limits are live, and a share set by hand is another try.
    profile(folder, a, "slow", ttft=1.25, itl=1000)
    check(admin(s, "POST", "/admin/reload")[0] == 200, "a reload with other limits")
    check(until(lambda: admin(s, "POST", "/admin/canary", {"percent": 50})[0] == 200), "another try")
    gates = await until_home(s, "a canary slow to begin")
    check(gates == ["ttft_p95_ratio"], f"a canary slow to begin is sent home for {gates}")
    check(s.stop() == 0, "SIGTERM after the slow one")
    os.remove(f"{folder}/canary.json")


# Both write digits; one ends as soon as it may, the other never.
async def breaks_forms(a, folder):
    model = json.load(open(os.path.join(a[1], "config.json")))
    digit = json.load(open(os.path.join(a[1], "tokenizer.json")))["model"]["vocab"]["1"]
    s = Server(a[0], a[1], "--config", profile(folder, a, "endless", stable="ends", kl=1e9, favour=(model["eos_token_id"], digit)), "--threads", "1")
    gates = await until_home(s, "a canary that breaks forms", more={"structured_outputs": {"regex": "[0-9]{1,100}"}, "ignore_eos": False})
    check(gates == ["structured_fail_delta"], f"a canary that breaks forms is sent home for {gates}")
    check(canary(s)["stable"]["structured_failed"] == 0, f"the stable one broke a form: {canary(s)['stable']}")
    check(s.stop() == 0, "SIGTERM after the endless one")
    os.remove(f"{folder}/canary.json")


async def disliked(a, folder):
    s = Server(a[0], a[1], "--config", profile(folder, a, "fp8"), "--threads", "1")
    def tell(got):
        for _, arm, _, request_id, _ in got:
            admin(s, "POST", "/admin/feedback", {"request_id": request_id, "verdict": "bad" if arm == "canary" else "good"})
    gates = await until_home(s, "a canary that people do not like", after=tell)
    check(gates == ["feedback_negative_delta"], f"a canary that people do not like is sent home for {gates}")
    check(s.stop() == 0, "SIGTERM after the disliked one")
    os.remove(f"{folder}/canary.json")


async def main():
    a = [os.path.abspath(x) for x in sys.argv[1:4]]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        await good_one(a, folder)
        await slightly_wrong(a, folder)
        await stops_computing(a, folder)
        await slow(a, folder)
        await breaks_forms(a, folder)
        await disliked(a, folder)
        # What cannot be.
        r = subprocess.run([a[0], "serve", "--config", profile(folder, a, "nobody"), "--port", "0"], capture_output=True, text=True)
        check(r.returncode == 2 and "nobody" in r.stderr, f"an unknown backend: {r.returncode} {r.stderr}")
        r = subprocess.run([a[0], "serve", "--config", profile(folder, a, "fp8", more='sticky_by = "x"'), "--port", "0"], capture_output=True, text=True)
        check(r.returncode == 2 and "canary.sticky_by" in r.stderr, f"an unknown key: {r.returncode} {r.stderr}")
        r = subprocess.run([a[0], "canary", "status", "--url", "http://127.0.0.1:9"], capture_output=True, text=True)
        check(r.returncode == 7 and "E505" in r.stderr, f"no server: {r.returncode} {r.stderr}")
    for f in faults[:20]: print("fault:", f)
    print(f"{len(faults)} faults")
    sys.exit(1 if faults else 0)


asyncio.run(main())
