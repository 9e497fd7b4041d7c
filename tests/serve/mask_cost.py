"""What grammar masks cost: tokens per second of concurrent requests with and without a schema.

    mask_cost.py http://127.0.0.1:8000 [--concurrency 8] [--tokens 128] [--rounds 5] [--pid PID]

Plain and constrained rounds alternate (A B B A ...); a plain request gives exactly --tokens tokens. The
first constrained round, in which the grammar is compiled and its masks are new, is printed apart. With
--pid of the server its processor time is compared too, which other work on the machine disturbs less.
"""
import argparse, json, os, statistics, threading, time, urllib.request

SCHEMA = {"type": "array", "minItems": 5, "items": {"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "email": {"type": "string", "maxLength": 40},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}}, "active": {"type": "boolean"}}, "required": ["name", "age", "tags"]}}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("url")
    p.add_argument("--concurrency", type=int, default=8)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--pid", type=int)
    a = p.parse_args()

    def cpu():
        if not a.pid: return 0.0
        f = open(f"/proc/{a.pid}/stat").read().rsplit(") ", 1)[1].split()
        return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")

    def one(i, constrained, out):
        body = {"prompt": f"Here are {i + 20} people as JSON:\n", "max_tokens": a.tokens, "temperature": 1.0, "seed": i, "ignore_eos": True}
        if constrained: body["structured_outputs"] = {"json": SCHEMA}
        r = urllib.request.urlopen(urllib.request.Request(a.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=300)
        out.append(json.load(r)["usage"]["completion_tokens"])

    def round_(constrained):
        out = []
        threads = [threading.Thread(target=one, args=(i, constrained, out)) for i in range(a.concurrency)]
        t0, c0 = time.perf_counter(), cpu()
        for t in threads: t.start()
        for t in threads: t.join()
        if not constrained: assert out == [a.tokens] * a.concurrency, out
        return sum(out) / (time.perf_counter() - t0), (cpu() - c0) / sum(out) * 1000

    round_(False)
    print(f"first constrained round {round_(True)[0]:.1f} tok/s")
    plain, masked = [], []
    for i in range(a.rounds):
        for constrained in ((False, True) if i % 2 == 0 else (True, False)):
            (masked if constrained else plain).append(round_(constrained))
    for k, unit in ((0, "tok/s"), (1, "ms of processor time a token"))[:2 if a.pid else 1]:
        p, m = statistics.median(x[k] for x in plain), statistics.median(x[k] for x in masked)
        print(f"{unit}: plain {p:.3f}, constrained {m:.3f}: masks cost {100 * ((1 - m / p) if k == 0 else (m / p - 1)):.1f} %")


main()
