"""The model behind a server is changed while clients stream from it.

    swap_test.py PROGRAM MODEL AWQ DRIFTING [--seconds 300] [--every 20] [--clients 16]

Without arguments ten seconds with a swap every 1.5; QENGINE_SWAP_SECONDS says otherwise too.

AWQ: the same model quantized; DRIFTING: the folder of the plugin whose numbers are wrong. Each backend is first asked alone.
Then clients stream while a swap comes every few seconds, among bf16, online FP8, AWQ and one that fails its check: every
answer must be whole and equal to what the backend that it names says alone, and memory must come back after each swap.
Last, one by one: a full memory, drain_first, a model that breaks after the switch, who may ask at all.
"""
import argparse, asyncio, hashlib, json, os, random, signal, sys, tempfile, time

sys.path.insert(0, os.path.dirname(__file__))
from server_under_test import Server, admin, events, request

PROMPTS = [("Once upon a time", {}), ("The list", {}), ("import os\n", {}), ("A function that", {"temperature": 0.8, "seed": 7}),
           ("In this section", {"temperature": 1.0, "seed": 11, "top_p": 0.9}), ("Return the", {})]
faults = []


def check(ok, what):
    if not ok: faults.append(what)
    return ok


def body(i, n=48, **more):
    return json.dumps({"prompt": PROMPTS[i][0], "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True, **PROMPTS[i][1], **more}).encode()


def text_of(chunks):
    return "".join(c["choices"][0]["text"] for c in chunks if c.get("choices"))


def idle(s, seconds=60):
    until = time.time() + seconds
    while True:
        status = admin(s, "GET", "/admin/status")[1]
        if status["swap"]["state"] == "idle" or time.time() > until: return status
        time.sleep(0.02)


def profile(folder, a, active, trust="hash"):
    sha = hashlib.sha256(open(os.path.join(a.drifting, "drifting.so"), "rb").read()).hexdigest()
    path = os.path.join(folder, "q.toml")
    open(path + ".new", "w").write(f'''schema = 1
[model]
path = "{a.model}"
max_model_len = 1024
[engine]
kv_cache_memory_bytes = "64MiB"
[plugins]
paths = ["{a.drifting}"]
trust = "{trust}"
[[plugins.allow]]
id = "test.drifting"
sha256 = "{sha}"
[server]
active_backend = "{active}"
[[backend]]
name = "bf16"
plugin = "bf16_ref"
[[backend]]
name = "fp8"
plugin = "fp8_online:fp8_per_channel"
kv_cache_dtype = "fp8"
[[backend]]
name = "awq"
path = "{a.awq}"
[[backend]]
name = "bad"
plugin = "drifting"
[backend.options.drifting]
error = 3.0
[[backend]]
name = "late"
plugin = "drifting"
[backend.options.drifting]
nan_after = 1000
''')
    os.rename(path + ".new", path)
    return path


async def ask(s, i, n=48, **more):
    """(status, backend, text, whole)"""
    status, fields, data = await request(s.port, "POST", "/v1/completions", body(i, n, **more))
    if status != 200: return status, None, data.decode(errors="replace"), False
    chunks, done = events(data)
    whole = done and not any("error" in c for c in chunks) and sum(bool(c["choices"] and c["choices"][0]["finish_reason"]) for c in chunks) == 1
    return status, fields.get("x-qengine-backend"), text_of(chunks), whole


async def alone(a, folder, name):
    s = Server(a.program, a.model, "--config", profile(folder, a, name), "--threads", "1")
    out = []
    for i in range(len(PROMPTS)):
        status, backend, text, whole = await ask(s, i)
        check(status == 200 and whole and backend == name, f"{name} alone, prompt {i}: {status} {backend} {text[:100]}")
        out.append(text)
    check(s.stop() == 0, f"{name} alone did not end with 0")
    return out


async def under_load(a, folder, expected):
    s = Server(a.program, a.model, "--config", profile(folder, a, "bf16"), "--threads", "1")
    until = time.time() + a.seconds
    count, by_backend = 0, {}

    async def client(seed):
        nonlocal count
        rng = random.Random(seed)
        while time.time() < until:
            i = rng.randrange(len(PROMPTS))
            try:
                status, backend, text, whole = await ask(s, i)
            except OSError as e:
                check(False, f"a request was lost: {type(e).__name__} {e}")
                continue
            count += 1
            by_backend[backend] = by_backend.get(backend, 0) + 1
            if check(status == 200 and whole, f"an answer is not whole: {status} {text[:200]}"):
                check(text == expected[backend][i], f"prompt {i} on {backend}: {text!r}, alone {expected[backend][i]!r}")

    clients = [asyncio.create_task(client(i)) for i in range(a.clients)]
    order = ["fp8", "bad", "awq", "bf16", "awq", "bad", "fp8", "bf16"]
    swaps, rss, live = 0, [], "bf16"
    while time.time() < until - 1:
        to = order[swaps % len(order)]
        began = time.time()
        if swaps % 3 == 2:  # as an operator does it: edit, SIGHUP
            before = (await asyncio.to_thread(admin, s, "GET", "/admin/status"))[1]["swap"].get("last", {}).get("to")
            profile(folder, a, to)
            s.process.send_signal(signal.SIGHUP)
            while True:
                status = (await asyncio.to_thread(admin, s, "GET", "/admin/status"))[1]
                if (status["swap"].get("last", {}).get("to") == to and status["swap"]["state"] in ("idle", "draining")) or time.time() > began + 60: break
                await asyncio.sleep(0.02)
            report = status["swap"].get("last", {})
        else:
            code, report = await asyncio.to_thread(admin, s, "POST", "/admin/switch", {"to": to})
            check(code == (422 if to == "bad" else 200), f"switch to {to}: {code} {report}")
        swaps += 1
        if to == "bad": check(report["result"] == "rolled_back" and report["reason"] == "kl", f"bad was not refused for its KL: {report}")
        else:
            check(report["result"] == "switched", f"switch to {to}: {report}")
            live = to
        status = await asyncio.to_thread(idle, s)
        check(status["backend"] == live and len(status["backends"]) == 1, f"after the swap to {to}: {status}")
        rss.append(s.rss())
        await asyncio.sleep(max(0, a.every - (time.time() - began)))
    await asyncio.gather(*clients)
    m = s.idle()
    check(m["vllm:kv_cache_usage_perc"] == 0, "blocks of the KV cache are still in use")
    check(m["qengine:swap_total"] == swaps, f"{m['qengine:swap_total']} swaps in the metrics, {swaps} made")
    check(set(by_backend) >= ({"bf16", "fp8", "awq"} if swaps >= 4 else {"bf16"}) and "bad" not in by_backend, f"answers by backend: {by_backend}")
    base, most = max(rss[:4]), max(rss[-4:])
    check(most <= base * 1.05 + (4 << 20), f"memory after swaps grew from {base >> 20} to {most >> 20} MiB: {[r >> 20 for r in rss]}")
    check(s.stop() == 0, "SIGTERM after the swaps")
    print(f"{swaps} swaps under {a.clients} clients: {count} answers {by_backend}, resident {base >> 20} MiB after the first, {most >> 20} MiB after the last", flush=True)


async def one_by_one(a, folder):
    s = Server(a.program, a.model, "--config", profile(folder, a, "bf16"), "--threads", "1", env={"QENGINE_LOG_LEVEL": "info"})

    # Two at once; what cannot be; what is not there.
    first = asyncio.create_task(asyncio.to_thread(admin, s, "POST", "/admin/switch", {"to": "fp8"}))
    second = await asyncio.to_thread(admin, s, "POST", "/admin/reload")
    codes = sorted([(await first)[0], second[0]])
    check(codes in ([200, 409], [200, 200]), f"two swaps at once: {codes} {second}")
    idle(s)
    code, r = admin(s, "POST", "/admin/switch", {"to": "gone"})
    check(code == 422 and "bf16" in r["error"]["message"] and r["reason"] == "profile", f"an unknown backend: {code} {r}")
    code, r = admin(s, "POST", "/admin/reload", {"backend": {"plugin": "nothing"}})
    check(code == 422 and r["result"] == "refused" and "E103" in r["message"], f"an unknown plugin: {code} {r}")
    code, r = admin(s, "POST", "/admin/reload", {"backend": {"port": 1}})
    check(code == 422 and "unknown key backend.port" in r["message"], f"a key that is no backend's: {code} {r}")
    other = os.path.join(os.path.dirname(a.model), "tiny-qwen2")
    code, r = admin(s, "POST", "/admin/reload", {"backend": {"path": other, "quantization": "none"}})
    check(code == 422 and r["reason"] == "tokenizer", f"another tokenizer: {code} {r}")
    code, r = admin(s, "POST", "/admin/reload", {"mode": "sideways"})
    check(code == 400 and r["error"]["param"] == "mode", f"an unknown mode: {code} {r}")

    # More memory than there is: refused with the missing bytes, and nothing has stopped.
    for mode in ("beside", "auto"):
        code, r = admin(s, "POST", "/admin/reload", {"backend": {"name": "bf16", "kv_cache_memory_bytes": "9000GiB", "max_num_seqs": 8000000}, "mode": mode})
        check(code == 409 and r["reason"] == "memory" and " bytes)" in r["message"], f"no memory, {mode}: {code} {r}")

    # The profile cannot let more code in than it did at the start.
    profile(folder, a, "bf16", trust="any")
    code, r = admin(s, "POST", "/admin/reload")
    check(code == 200 and any("plugins.trust" in n for n in r.get("notices", [])), f"trust was changed: {code} {r}")
    profile(folder, a, "bf16")
    idle(s)

    # drain_first: what was accepted is finished, new requests are told when to come back.
    long = [asyncio.create_task(ask(s, 0, 600)) for _ in range(4)]
    await asyncio.sleep(0.3)
    swap = asyncio.create_task(asyncio.to_thread(admin, s, "POST", "/admin/switch", {"to": "awq", "mode": "drain_first"}))
    refused = None
    while not swap.done():
        status, fields, data = await request(s.port, "POST", "/v1/completions", body(1, 1))
        if status == 503: refused = (fields.get("retry-after"), json.loads(data)["error"]["code"])
        await asyncio.sleep(0.02)
    code, r = await swap
    check(code == 200 and r["to"] == "awq" and r.get("silent_s", 0) > 0, f"drain_first: {code} {r}")
    check(refused is not None and int(refused[0]) >= 1 and refused[1] == "swapping", f"meanwhile: {refused}")
    for t in long:
        status, backend, text, whole = await t
        check(status == 200 and whole and backend == "bf16", f"an accepted request in drain_first: {status} {backend} {text[:100]}")
    check("did not answer for" in s.text() and "stops answering, for about" in s.text(), "the log does not say how long the server was silent")
    # ... and when the new one fails, the old one is loaded again.
    code, r = admin(s, "POST", "/admin/switch", {"to": "bad", "mode": "drain_first"})
    check(code == 422 and r["reason"] == "kl" and idle(s)["backend"] == "awq" and (await ask(s, 0))[1] == "awq", f"drain_first to a bad one: {code} {r}")
    admin(s, "POST", "/admin/switch", {"to": "bf16"})
    idle(s)

    # It passes its check and breaks afterwards, while the old one still drains: they change places again.
    answers, ended = [], False

    async def load(i):
        await asyncio.sleep(i * 0.07)  # so that some are always in their middle
        while not ended: answers.append(await ask(s, 0, 900))

    clients = [asyncio.create_task(load(i)) for i in range(12)]
    await asyncio.sleep(1)
    code, r = await asyncio.to_thread(admin, s, "POST", "/admin/switch", {"to": "late"})
    check(code == 200 or r["result"] == "rolled_back", f"the late one: {code} {r}")  # it may break before anybody hears of the switch
    until = time.time() + 60
    while not any(not a[3] for a in answers) and time.time() < until: await asyncio.sleep(0.02)
    ended = True
    await asyncio.gather(*clients)
    broken = sum(not a[3] for a in answers)
    check(all(whole or backend in (None, "late") for _, backend, _, whole in answers), "a request on the old backend was not finished")
    status = await asyncio.to_thread(idle, s)
    check(broken and status["backend"] == "bf16" and status["swap"]["last"]["result"] == "rolled_back", f"after the late one: {broken} broken, {status}")
    check((await ask(s, 0))[1] == "bf16", "the old backend does not answer")
    metrics = s.get("/metrics")
    for label in ('result="switched",reason="ok"', 'result="rolled_back",reason="kl"', 'result="refused",reason="memory"', 'result="rolled_back",reason="failed"', 'result="rolled_back",reason="tokenizer"'):
        check("qengine:swap_total{" + label + "}" in metrics, f"no swap_total with {label}")
    check('qengine:backend_info{backend="bf16",arm="stable"' in metrics, "backend_info does not name bf16")

    # A page in a browser may not ask, and with keys nobody without one.
    code, r = admin(s, "POST", "/admin/switch", {"to": "fp8"}, {"Origin": "http://elsewhere.example"})
    check(code == 403 and r["error"]["code"] == "admin_disabled", f"a web page: {code} {r}")
    code, r = admin(s, "GET", "/admin/status", None, {"X-Forwarded-For": "192.0.2.1"})
    check(code == 403, f"through a proxy: {code} {r}")
    check(s.stop() == 0, "SIGTERM at the end")
    keys = os.path.join(folder, "keys.txt")
    open(keys, "w").write("clients-key\n")
    open(keys + ".admin", "w").write("admins-key\n")
    s = Server(a.program, a.model, "--config", profile(folder, a, "bf16"), "--api-key-file", keys, "--admin-key-file", keys + ".admin", "--threads", "1")
    for key, want in ((None, 401), ("clients-key", 401), ("admins-key", 200)):
        code, r = admin(s, "GET", "/admin/status", None, {"Authorization": f"Bearer {key}"} if key else {})
        check(code == want, f"status with {key}: {code} {r}")
    open(keys, "w").write("other-key\n")  # a reload reads keys again
    check(admin(s, "POST", "/admin/reload", None, {"Authorization": "Bearer admins-key"})[0] == 200, "reload with a new key file")
    for key, want in (("clients-key", 401), ("other-key", 200)):
        code, r = admin(s, "GET", "/v1/models", None, {"Authorization": f"Bearer {key}"})
        check(code == want, f"models with {key} after the reload: {code} {r}")
    check(s.stop() == 0, "SIGTERM with keys")


async def main():
    p = argparse.ArgumentParser()
    for name in ("program", "model", "awq", "drifting"): p.add_argument(name)
    p.add_argument("--seconds", type=float, default=float(os.environ.get("QENGINE_SWAP_SECONDS", 10)))
    p.add_argument("--every", type=float, default=1.5)
    p.add_argument("--clients", type=int, default=16)
    a = p.parse_args()
    a.model, a.awq, a.drifting = map(os.path.abspath, (a.model, a.awq, a.drifting))
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        expected = {name: await alone(a, folder, name) for name in ("bf16", "fp8", "awq")}
        check(len({tuple(v) for v in expected.values()}) == 3, "the backends say the same: the test could not tell them apart")
        await under_load(a, folder, expected)
        await one_by_one(a, folder)
    for f in faults[:20]: print("fault:", f)
    print(f"{len(faults)} faults")
    sys.exit(1 if faults else 0)


asyncio.run(main())
