"""Thousands of open streams at once, with flat memory.

    many_streams.py PROGRAM MODEL [--streams 2000] [--tokens 24] [--waves 3]

Every wave opens all streams before any is read; a part of them reads slowly. Holds when every stream is
whole, a later wave needs no more memory than the first, and all descriptors are closed afterwards.
"""
import argparse, asyncio, json, os, resource, sys, time

from server_under_test import Server, events, request


async def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("--streams", type=int, default=2000)
    p.add_argument("--tokens", type=int, default=24)
    p.add_argument("--waves", type=int, default=3)
    a = p.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, a.streams + 200)), hard))
    s = Server(a.program, a.model, "--max-num-queued-reqs", str(a.streams + 100), "--max-model-len", "512")
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": a.tokens, "temperature": 0, "ignore_eos": True, "stream": True}).encode()
    faults, peaks = [], []
    for wave in range(a.waves):
        t0, most = time.time(), 0
        tasks = [asyncio.create_task(request(s.port, "POST", "/v1/completions", body, read_slowly=0.02 if i % 10 == 0 else 0.0)) for i in range(a.streams)]
        peak = 0
        while not all(t.done() for t in tasks):
            peak = max(peak, s.rss())
            most = max(most, len(os.listdir(f"/proc/{s.pid}/fd")))
            await asyncio.sleep(0.2)
        good = 0
        for t in tasks:
            try:
                status, _, data = t.result()
                chunks, done = events(data)
                good += status == 200 and done and sum(bool(c["choices"] and c["choices"][0]["finish_reason"]) for c in chunks) == 1
            except Exception as e:
                faults.append(f"{type(e).__name__} {e}")
        if good != a.streams: faults.append(f"wave {wave}: {good} of {a.streams} streams are whole")
        peaks.append(peak)
        print(f"wave {wave}: {good} whole streams in {time.time() - t0:.1f} s, {most} descriptors at once, peak {peak >> 20} MiB", flush=True)
    m = s.idle()
    await asyncio.sleep(0.5)
    left = len(os.listdir(f"/proc/{s.pid}/fd"))
    if left > 40: faults.append(f"{left} descriptors are still open")
    if m["vllm:kv_cache_usage_perc"] != 0: faults.append("blocks of the KV cache are still in use")
    if len(peaks) > 1 and peaks[-1] > peaks[0] * 1.05 + (8 << 20): faults.append(f"memory grew from {peaks[0] >> 20} to {peaks[-1] >> 20} MiB")
    if s.stop() != 0: faults.append("SIGTERM did not end with 0")
    for f in faults[:10]: print("fault:", f)
    sys.exit(1 if faults else 0)


asyncio.run(main())
