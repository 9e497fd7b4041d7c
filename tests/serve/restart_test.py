"""Ends and new beginnings under load: kill -9 and serving again at once, drain on SIGTERM, its deadline, a second
signal, request timeouts, a full queue. Every server but the one that is timed takes 3 ms a step more.

    restart_test.py PROGRAM MODEL DRIFTING
"""
import asyncio, json, os, re, signal, sys, time

sys.path.insert(0, os.path.dirname(__file__))
from server_under_test import Server, events, request, slowed

faults = []


def check(ok, what):
    if not ok: faults.append(what)


def body(n, **kw):
    return json.dumps({"prompt": "Once", "max_tokens": n, "temperature": 0, "ignore_eos": True, **kw}).encode()


async def start(s, n, count=1, **kw):
    """`count` requests, all of them accepted and the first running."""
    tasks = [asyncio.create_task(request(s.port, "POST", "/v1/completions", body(n, **kw))) for _ in range(count)]
    until = time.time() + 60
    while time.time() < until:
        m = await asyncio.to_thread(s.metrics)
        if m["vllm:num_requests_running"] >= 1 and m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] == count: return tasks
        await asyncio.sleep(0.02)
    raise SystemExit(f"fault: of {count} requests {m['vllm:num_requests_running']} run and {m['vllm:num_requests_waiting']} wait after a minute")


async def main():
    program, model, drifting = sys.argv[1:4]
    slow = slowed(drifting, 3)
    # kill -9 under load; then up again, and serving again (within a second on an idle machine; the time is printed).
    s = Server(program, model, *slow, "--max-model-len", "1024")
    tasks = await start(s, 800, 8, stream=True)
    s.process.kill()
    s.process.wait()
    for t in tasks:
        try:
            status, _, data = await t
            check(status == -1 or not events(data)[1], "a killed server cannot have finished")
        except (OSError, ValueError, IndexError):
            pass
    t0 = time.time()
    s = Server(program, model)
    s.post("/v1/completions", {"prompt": "Once", "max_tokens": 1})
    up = time.time() - t0
    check(up < 60, f"serving again took {up:.1f} s")

    check(s.stop() == 0, "SIGTERM without a request")

    # SIGTERM: what was accepted is finished, once; new requests are turned away; exit 0. However slow the machine is: the deadline is a test of its own.
    s = Server(program, model, *slow, "--shutdown-timeout", "600")
    tasks = await start(s, 200, 12, stream=True)
    s.process.send_signal(signal.SIGTERM)
    whole = 0
    for t in tasks:
        status, _, data = await t
        whole += status == 200 and events(data)[1] and sum(bool(c.get("choices") and c["choices"][0]["finish_reason"]) for c in events(data)[0]) == 1
    check(whole == 12, f"{whole} of 12 accepted requests were finished in the drain")
    check(await asyncio.to_thread(s.process.wait, 60) == 0, "the drained server did not exit with 0")

    # The deadline: what is not finished gets an error event, and the exit tells.
    s = Server(program, model, *slow, "--shutdown-timeout", "0.5", "--max-model-len", "1024", "--max-num-seqs", "2")
    tasks = await start(s, 1000, 12, stream=True)
    t0 = time.time()
    s.process.send_signal(signal.SIGTERM)
    ended = errors = 0
    for t in tasks:
        status, _, data = await t
        if status == 200 and b'"error"' in data:
            chunks, done = events(data)
            check(done and ["error" in c for c in chunks].index(True) == len(chunks) - 1, f"deadline: an answer that goes on behind its error: {data[-300:]}")
        if status == 503 or b'"error"' in data: errors += 1
        elif events(data)[1]: ended += 1
    status = await asyncio.to_thread(s.process.wait, 60)
    check(ended + errors == 12 and errors > 0, f"deadline: {ended} ended, {errors} told of it")
    check(status == 143 and time.time() - t0 < 60, f"deadline: exit {status} after {time.time() - t0:.1f} s")

    # A second signal does not wait.
    s = Server(program, model, *slow, "--max-model-len", "1024")
    tasks = await start(s, 1000, 4)
    s.process.send_signal(signal.SIGTERM)
    s.process.send_signal(signal.SIGTERM)  # the same one, delivered twice as wrappers do
    await asyncio.sleep(0.5)
    check(s.process.poll() is None, "an interrupt delivered twice is one")
    s.process.send_signal(signal.SIGTERM)
    check(await asyncio.to_thread(s.process.wait, 60) == 143, "a second signal ends at once")
    for t in tasks: t.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    # A full queue: 429 with Retry-After, at once.
    s = Server(program, model, *slow, "--max-num-queued-reqs", "4", "--max-num-seqs", "1", "--max-model-len", "1024")
    tasks = await start(s, 200, 4, stream=True)
    t0 = time.time()
    status, fields, data = await request(s.port, "POST", "/v1/completions", body(1))
    took = time.time() - t0
    check(status == 429 and 1 <= int(fields.get("retry-after", 0)) <= 30 and json.loads(data)["error"]["code"] == "queue_full", f"full queue: {status} {fields} {data[:200]}")
    check(took < 30, f"a full queue answered after {took:.2f} s")
    await asyncio.gather(*tasks)
    check(s.stop() == 0, "SIGTERM after a full queue")

    # Time is up: those that run get an error event, those that wait a 408; their blocks come back.
    s = Server(program, model, *slow, "--max-num-seqs", "1", "--max-model-len", "1024", "--request-timeout", "0.1")
    tasks = [asyncio.create_task(request(s.port, "POST", "/v1/completions", body(1000, stream=True))) for _ in range(4)]
    late = 0
    for t in tasks:
        status, _, data = await t
        late += status == 408 or b"request_timeout" in data
    check(late > 0, "no request met its timeout")
    m = s.idle()
    check(m["vllm:kv_cache_usage_perc"] == 0, "blocks are still in use")
    check(s.stop() == 0, "SIGTERM after it all")
    for f in faults: print("fault:", f)
    print(f"serving again {up:.2f} s after kill -9; {len(faults)} faults")
    sys.exit(1 if faults else 0)


asyncio.run(main())
