"""Mixed load: good requests among clients that leave, dawdle or send rubbish.

    mixed_load.py PROGRAM MODEL [--seconds 60] [--clients 24] [--seed 1]

Holds when every good request got exactly its answer (greedy text equal to the one given alone), every
bad one its refusal, every accepted choice was ended once in the server's own count, no block of the
KV cache is in use afterwards, memory stopped growing, no prompt is in the log, and SIGTERM ends the
server with 0. Under a sanitizer its report ends the process with another status.
"""
import argparse, asyncio, json, random, sys, time

from server_under_test import Server, events, request

MARK = "zebra-marker-7731"  # stands in every prompt and must not be in the log
PROMPTS = [f"{MARK} the story of number {i}:" for i in range(6)]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "minimum": 0, "maximum": 99}, "list": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}, "required": ["name", "n", "list"]}


class Load:
    def __init__(self, server, rng):
        self.s, self.rng, self.done, self.faults = server, rng, {}, []
        self.texts = {}

    def check(self, ok, what):
        if not ok and len(self.faults) < 20: self.faults.append(what)

    def body(self, **kw):
        return json.dumps({"model": "m", "temperature": 0, **kw}).encode()

    async def post(self, path, body, **kw):
        return await request(self.s.port, "POST", path, body, **kw)

    async def whole(self):
        i, n = self.rng.randrange(len(PROMPTS)), self.rng.choice([1, 8, 24])
        status, _, body = await self.post("/v1/completions", self.body(prompt=PROMPTS[i], max_tokens=n, ignore_eos=True))
        self.check(status == 200, f"whole: {status} {body[:200]}")
        if status == 200:
            j = json.loads(body)
            self.check(j["choices"][0]["text"] == self.texts[i, n] and j["usage"]["completion_tokens"] == n, f"whole: other text for {i}, {n}")

    async def stream(self, **kw):
        i, n = self.rng.randrange(len(PROMPTS)), self.rng.choice([8, 24])
        status, _, body = await self.post("/v1/completions", self.body(prompt=PROMPTS[i], max_tokens=n, ignore_eos=True, stream=True), **kw)
        self.check(status == 200, f"stream: {status}")
        if status == 200:
            chunks, done = events(body)
            ends = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
            self.check(done and ends == ["length"], f"stream: ends {ends}, done {done}")
            self.check("".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == self.texts[i, n], f"stream: other text for {i}, {n}")

    async def slow_reader(self):
        await self.stream(read_slowly=0.01)

    async def slow_sender(self):
        status, _, body = await self.post("/v1/completions", self.body(prompt=PROMPTS[0], max_tokens=1, ignore_eos=True), slow=0.05)
        self.check(status == 200, f"slow sender: {status}")

    async def batch(self):
        status, _, body = await self.post("/v1/completions", self.body(prompt=PROMPTS[:3], max_tokens=8, ignore_eos=True))
        self.check(status == 200 and [c["text"] for c in json.loads(body)["choices"]] == [self.texts[i, 8] for i in range(3)], f"batch: {status}")

    async def schema(self):
        status, _, body = await self.post("/v1/completions", self.body(prompt=PROMPTS[1], max_tokens=self.rng.choice([40, 60]), temperature=1, structured_outputs={"json": SCHEMA}))
        self.check(status == 200, f"schema: {status} {body[:200]}")
        if status == 200:
            try:
                v = json.loads(json.loads(body)["choices"][0]["text"])
                self.check(set(v) == {"name", "n", "list"} and 0 <= v["n"] <= 99, f"schema: {v}")
            except ValueError:
                self.check(False, f"schema: {json.loads(body)['choices'][0]}")

    async def leave_early(self):
        await self.post("/v1/completions", self.body(prompt=PROMPTS[2], max_tokens=400, ignore_eos=True), leave_after=0)

    async def leave_streaming(self):
        await self.post("/v1/completions", self.body(prompt=PROMPTS[3], max_tokens=400, ignore_eos=True, stream=True), leave_after=self.rng.choice([1, 400, 3000]))

    async def refused(self):
        status, body = self.rng.choice([
            (400, b"{"), (400, b"\xff\xfe{}"), (400, b'{"prompt":"' + MARK.encode() + b'\xff"}'), (400, b"[" * 50000), (400, b'{"a":' * 5000), (400, b'{"prompt":5}'), (400, b'{"prompt":"a","max_tokens":-1}'), (404, b'{"model":"other","prompt":"a"}'),
            (400, self.body(prompt="a", structured_outputs={"regex": "(a"})), (400, self.body(prompt="a", structured_outputs={"json": {"not": {}}})), (400, self.body(prompt="a", max_tokens=10**6)), (400, self.body(prompt="a", stop=["x"] * 100)), (413, b" " * (2 << 20))])
        got, _, answer = await self.post("/v1/completions", body)
        self.check(got == status, f"refused: {got} instead of {status} for {body[:60]} {answer[:100]}")
        if got == status: self.check("message" in json.loads(answer)["error"], "refused: no error body")

    async def rubbish(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.s.port)
        writer.write(self.rng.choice([b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"GET /" + b"a" * 40000, b"\r\n" * 100, b"GET / HTTP/1.1\r\nA: " + b"b" * 100]))
        try:
            await writer.drain()
            await asyncio.wait_for(reader.read(1000), 0.3)
        except (asyncio.TimeoutError, ConnectionError):
            pass
        writer.close()

    async def others(self):
        method, path, status = self.rng.choice([("GET", "/health", 200), ("GET", "/v1/models", 200), ("GET", "/metrics", 200), ("DELETE", "/v1/models", 405), ("GET", "/nothing", 404), ("GET", "/", 200)])
        got, _, _ = await request(self.s.port, method, path)
        self.check(got == status, f"{method} {path}: {got}")

    async def client(self, until):
        kinds = [self.whole] * 4 + [self.stream] * 4 + [self.schema] * 2 + [self.batch, self.slow_reader, self.slow_sender, self.leave_early, self.leave_streaming, self.leave_streaming, self.refused, self.refused, self.rubbish, self.others]
        while time.time() < until:
            kind = self.rng.choice(kinds)
            try:
                await asyncio.wait_for(kind(), 120)
            except (asyncio.TimeoutError, ConnectionError, ValueError, KeyError) as e:
                self.check(False, f"{kind.__name__}: {type(e).__name__} {e}")
            self.done[kind.__name__] = self.done.get(kind.__name__, 0) + 1


async def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("--seconds", type=int, default=60)
    p.add_argument("--clients", type=int, default=24)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    s = Server(a.program, a.model, "--max-body-bytes", "1MiB", "--max-model-len", "512", "--log-level", "debug")
    load = Load(s, random.Random(a.seed))
    for i, prompt in enumerate(PROMPTS):
        for n in (1, 8, 24): load.texts[i, n] = s.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True})["choices"][0]["text"]
    sizes = []
    until = time.time() + a.seconds
    async def watch():
        while time.time() < until:
            await asyncio.sleep(1)
            sizes.append(s.rss())
    await asyncio.gather(watch(), *(load.client(until) for _ in range(a.clients)))
    m = s.idle()
    prompts, ended = m["vllm:request_prompt_tokens_count"], m["vllm:request_success_total"]
    load.check(prompts == ended, f"{prompts:.0f} choices were accepted and {ended:.0f} ended")
    load.check(m["vllm:kv_cache_usage_perc"] == 0, f"{m['vllm:kv_cache_usage_perc']} of the KV cache is in use when nothing runs")
    load.check("qengine:structured_failures_total" in m and m["qengine:structured_failures_total"] == 0, "a grammar failed")
    half = sizes[len(sizes) // 2:]
    growth = max(half) - max(sizes[: len(sizes) // 2] or half) if a.seconds >= 60 else 0
    load.check(growth < 64 << 20, f"memory grew by {growth >> 20} MiB in the second half")
    status = s.stop()
    load.check(status == 0, f"SIGTERM ended with {status}")
    text = s.text()
    load.check(MARK not in text, "a prompt is in the log")
    load.check("Sanitizer" not in text, "a sanitizer reported: " + text[text.find("Sanitizer") - 200:][:3000] if "Sanitizer" in text else "")
    for f in load.faults: print("fault:", f)
    print(f"{sum(load.done.values())} exchanges {load.done}; {ended:.0f} choices ended; peak {max(sizes) >> 20} MiB, second half +{growth >> 20} MiB; {len(load.faults)} faults")
    sys.exit(1 if load.faults else 0)


asyncio.run(main())
