"""Faults that clients of other servers met (serving guides cite them), each tried over HTTP.

    faults_test.py PROGRAM MODEL DRIFTING

A grammar with one text makes the model write whatever a case needs: its tokens and their borders are real.
"""
import asyncio, json, os, sys, tempfile, threading, time, urllib.error, urllib.request

sys.path.insert(0, os.path.dirname(__file__))
from server_under_test import Server, events, request, slowed

faults = []


def check(ok, what):
    if not ok: faults.append(what)


def exact(text): return {"structured_outputs": {"choice": [text]}}


def stream(s, path, body):
    r = urllib.request.Request(s.url + path, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"})
    data = urllib.request.urlopen(r, timeout=300).read()
    data.decode()  # whole characters in every chunk, or this fails
    chunks, done = events(data)
    check(done, f"a stream did not end with [DONE]: {data[-200:]}")
    return chunks


def refusal(s, path, body, headers={}):
    """(status, error)"""
    try:
        with urllib.request.urlopen(urllib.request.Request(s.url + path, body if isinstance(body, bytes) else json.dumps(body).encode(), {"Content-Type": "application/json", **headers}), timeout=120) as r:
            return r.status, json.load(r)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)["error"]


def characters(s):
    """Characters of several tokens stream whole; the bytes of each token are its own; streamed is whole."""
    for text in ("a😀b", "😀😀é€", "日本語テスト 🤦🏽‍♂️ ok", "\u0000\t\"\\</script>"):
        body = {"prompt": "x", "max_tokens": 200, "temperature": 0, "logprobs": 0, **exact(text)}
        whole = s.post("/v1/completions", body)["choices"][0]
        chunks = [c["choices"][0] for c in stream(s, "/v1/completions", body)]
        check(whole["text"] == text, f"characters: {whole['text']!r} and not {text!r}")
        check("".join(c["text"] for c in chunks) == text, f"characters: streamed {[c['text'] for c in chunks]}")
        check(all("\ufffd" not in c["text"] for c in chunks), f"characters: half a character in {[c['text'] for c in chunks]}")
        chat = {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 200, "temperature": 0, "logprobs": True, "top_logprobs": 2, **exact(text)}
        entries = s.post("/v1/chat/completions", chat)["choices"][0]["logprobs"]["content"]
        check(b"".join(bytes(e["bytes"]) for e in entries).startswith(text.encode()), f"characters: bytes {[e['bytes'] for e in entries]}")
        streamed = [e for c in stream(s, "/v1/chat/completions", chat) if c["choices"] and c["choices"][0]["logprobs"] for e in c["choices"][0]["logprobs"]["content"]]
        check([e["bytes"] for e in streamed] == [e["bytes"] for e in entries], "characters: streamed logprobs are not those of the whole")
    # Cut within a character: one replacement character, streamed or not.
    ids = s.post("/tokenize", {"prompt": "😀", "add_special_tokens": False})["tokens"]
    if len(ids) > 1:
        body = {"prompt": "x", "max_tokens": 1, "temperature": 0, "logit_bias": {str(ids[0]): 100}}
        text = s.post("/v1/completions", body)["choices"][0]["text"]
        check(text.count("\ufffd") == 1, f"characters: cut: {text!r}")
        check("".join(c["choices"][0]["text"] for c in stream(s, "/v1/completions", body)) == text, "characters: cut: streamed is another")


def stops(s):
    """A stop string over tokens and chunks never leaks and eats nothing else."""
    text = "alpha beta, gamma; delta. STOP and more"
    for stop, left in (("a g", text), (", gam", "alpha beta"), ("STOP", "alpha beta, gamma; delta. "), (["zzz", "lta", "delta. S"], "alpha beta, gamma; de"), ("\n", text), ("more", text[:-4])):
        for include in (False, True):
            body = {"prompt": "x", "max_tokens": 200, "temperature": 0, "stop": stop, "include_stop_str_in_output": include, **exact(text)}
            c = s.post("/v1/completions", body)["choices"][0]
            hit = next((x for x in ([stop] if isinstance(stop, str) else stop) if left + x == text[:len(left) + len(x)] and left != text), None)
            want = left + (hit if include and hit else "")
            check(c["text"] == want and c["finish_reason"] == "stop" and c["stop_reason"] == hit, f"stop {stop!r}: {c['text']!r}, {c['finish_reason']}, {c['stop_reason']!r}")
            chunks = [c["choices"][0] for c in stream(s, "/v1/completions", body)]
            check("".join(c["text"] for c in chunks) == want and chunks[-1]["stop_reason"] == hit, f"stop {stop!r} streamed: {[c['text'] for c in chunks]}")


def echoes(s):
    """echo and logprobs, streamed or not; offsets are of the text that came back; no tokens asked for: the prompt alone."""
    for prompt in ("One two three", "née 😀 ok"):
        for n in (0, 1, 7):
            body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": n, "temperature": 0}
            c = s.post("/v1/completions", body)["choices"][0]
            lp = c["logprobs"]
            count = len(s.post("/tokenize", {"prompt": prompt})["tokens"])
            check(c["text"].startswith(prompt) and (n or c["text"] == prompt), f"echo: {c['text']!r}")
            check(len(lp["tokens"]) == count + n and [i for i, v in enumerate(lp["token_logprobs"]) if v is None] == [0], f"echo, {n} tokens: {lp['token_logprobs']}")
            check(lp["text_offset"] == sorted(lp["text_offset"]) and lp["text_offset"][0] == 0 and all(o <= len(c["text"]) for o in lp["text_offset"]), f"echo: offsets {lp['text_offset']} of {c['text']!r}")
            check(all(c["text"].startswith(t, o) for t, o in zip(lp["tokens"], lp["text_offset"]) if "\ufffd" not in t), f"echo: offsets {lp['text_offset']} do not point at {lp['tokens']}")
            chunks = [x["choices"][0] for x in stream(s, "/v1/completions", body)]
            check("".join(x["text"] for x in chunks) == c["text"], f"echo streamed: {[x['text'] for x in chunks]}")
            joined = {k: [v for x in chunks if x["logprobs"] for v in x["logprobs"][k]] for k in lp}
            check(joined["tokens"] == lp["tokens"] and joined["text_offset"] == lp["text_offset"], f"echo streamed, {n} tokens: {joined}")


def tools(s):
    """Calls with braces, arrays of objects, text around them, two of them: streamed they are what they are whole."""
    calls = [("f", '{"a": {"b": ["}", {"c": "{{"}]}, "d": "</tool"}'), ("g", '{"x": [{"y": 1}, {"y": 2}], "t": "a\\"}b"}')]
    block = lambda name, arguments: '<tool_call>\n{"name": "' + name + '", "arguments": ' + arguments + "}\n</tool_call>"
    texts = {block(*calls[0]): ("", calls[:1]), "Let me see. " + block(*calls[0]) + "\n" + block(*calls[1]): ("Let me see. ", calls), block(*calls[1]) + "\nThat is all.": (None, calls[1:]),
             '<tool_call>\n{"name": "f", "arguments": {"a": \n</tool_call>': (None, []), "a < b and <tool_box>": ("a < b and <tool_box>", [])}
    given = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in "fg"]
    for text, (content, want) in texts.items():
        body = {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 400, "temperature": 0, "tools": given, **exact(text)}
        c = s.post("/v1/chat/completions", body)["choices"][0]
        got = [(t["function"]["name"], t["function"]["arguments"]) for t in c["message"].get("tool_calls") or []]
        check([(n, json.loads(a)) for n, a in got] == [(n, json.loads(a)) for n, a in want], f"tools: {got} of {text!r}")
        check(c["finish_reason"] == ("tool_calls" if want else "stop"), f"tools: {c['finish_reason']} of {text!r}")
        if content is not None: check((c["message"]["content"] or "").strip() == content.strip(), f"tools: content {c['message']['content']!r} of {text!r}")
        if not want: check(c["message"]["content"] == text, f"tools: what is no call is content: {c['message']['content']!r}")
        streamed, said, finish = {}, "", None
        for e in stream(s, "/v1/chat/completions", body):
            d = e["choices"][0]["delta"]
            said += d.get("content") or ""
            finish = e["choices"][0]["finish_reason"] or finish
            for t in d.get("tool_calls", []):
                x = streamed.setdefault(t["index"], ["", ""])
                x[0] += t["function"].get("name") or ""
                x[1] += t["function"]["arguments"]
        check([tuple(v) for _, v in sorted(streamed.items())] == got and said == (c["message"]["content"] or "") and finish == c["finish_reason"], f"tools streamed: {streamed} {said!r} {finish} of {text!r}")


def reasoning(s):
    """Stop strings mean nothing while the model thinks, and do from there on."""
    def say(begin, **more):
        body = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": begin}], "continue_final_message": True, "max_completion_tokens": 24, "temperature": 0, "ignore_eos": True, **more}
        c = s.post("/v1/chat/completions", body)["choices"][0]
        parts = [e["choices"][0] for e in stream(s, "/v1/chat/completions", body)]
        for key in ("content", "reasoning"):
            check("".join(e["delta"].get(key) or "" for e in parts) == (c["message"].get(key) or ""), f"reasoning: streamed {key} is another than {c['message']}")
        return c["message"].get("reasoning") or "", c["message"]["content"] or "", c["finish_reason"]
    thought, content, finish = say("<think>Hm, ")
    check(len(thought) > 6 and not content and finish == "length", f"reasoning: {thought!r}, {content!r}, {finish}")
    check(say("<think>Hm, ", stop=[thought[3:5]]) == (thought, "", "length"), f"reasoning: {thought[3:5]!r} stopped a thought: {say('<think>Hm, ', stop=[thought[3:5]])}")
    _, content, finish = say("<think>Hm</think>So")
    check(len(content) > 6 and finish == "length", f"reasoning: after it: {content!r}, {finish}")
    check(say("<think>Hm</think>So", stop=[content[3:5]]) == ("", content[:content.index(content[3:5])], "stop"), f"reasoning: {content[3:5]!r} did not stop the answer")


def refusals(s):
    """A bad or explosive schema, pattern or grammar is a 400 that says why, and the next request works."""
    deep = {"type": "object"}
    for _ in range(20): deep = {"type": "object", "properties": {"a": deep, "b": deep}} if len(json.dumps(deep)) < 20000 else deep
    cases = [
        ({"json": {"type": "strin"}}, ""), ({"json": {"not": {}}}, "not"), ({"json": {"$ref": "#/nothing"}}, "nothing"), ({"json": {"type": "string", "pattern": "(a"}}, "without its )"), ({"json": {"type": "object", "properties": 5}}, ""),
        ({"regex": "(a"}, "without its )"), ({"regex": "a**"}, "quantifier"), ({"regex": "a" + "*" * 200000}, "quantifier"), ({"regex": "(" * 100000}, "nested"), ({"regex": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"}, "too"),
        ({"regex": "((){0,100000}){100000}"}, None), ({"regex": "[\\p{L}]"}, "\\p"), ({"regex": "(?=a)"}, "lookahead"), ({"regex": ".*a.{1,2000}"}, "too"),
        ({"grammar": "root ::= "}, "line 1, column 10"), ({"grammar": 'root ::= "a" x\nx ::= [a'}, "line 2, column 7"), ({"grammar": 'root ::= a\na ::= a'}, "allows no value"), ({"grammar": "start: x"}, "Lark"),
        ({"grammar": 'root ::= a "b"\na ::= b\nb ::= a "c" | "d"'}, "refers to itself"), ({"grammar": "root ::= " + "(" * 100000}, "nested"), ({"grammar": 'root ::= ((("a"?){1000}){1000}){1000}'}, "too"), ({"grammar": 5}, "must be a string"),
        ({"choice": []}, "not empty"), ({"json": {}, "whitespace_pattern": "[ a]*"}, "white space"), ({"json": {}, "whitespace_pattern": "("}, "without its )"), ({"json": {}, "regex": "a"}, "give one")]
    for outputs, words in cases:
        status, error = refusal(s, "/v1/completions", {"prompt": "x", "max_tokens": 4, "structured_outputs": outputs})
        if words is None:
            check(status in (200, 400), f"refusals: {json.dumps(outputs)[:80]}: {status}")
            continue
        check(status == 400 and words in error["message"], f"refusals: {json.dumps(outputs)[:80]}: {status} {str(error)[:300]}")
        check(len(error.get("message", "")) < 2000 and "%s" not in str(error), f"refusals: message {str(error)[:200]}")
    check(s.post("/v1/completions", {"prompt": "x", "max_tokens": 200, **exact("fine")})["choices"][0]["text"] == "fine", "refusals: the next request")
    # Nothing may follow, whatever the reason: the request's own fault, and its alone.
    status, error = refusal(s, "/v1/completions", {"prompt": "x", "max_tokens": 4, "allowed_token_ids": [5], **exact("fine")})
    check(status == 400 and "no token is allowed" in error["message"] and error["code"] == "invalid_grammar", f"refusals: nothing allowed: {status} {error}")
    # A text of a grammar, and what can end does: no blanks without end.
    g = 'root ::= "{" pair ("," pair)* "}"\npair ::= [a-z]{1,3} ":" ( [0-9] | root )'
    for seed in range(4):
        c = s.post("/v1/completions", {"prompt": "x", "max_tokens": 40, "temperature": 1, "seed": seed, "structured_outputs": {"grammar": g}})["choices"][0]
        check(c["text"].count("{") == c["text"].count("}") > 0, f"grammar: {c['text']!r}")
        c = s.post("/v1/completions", {"prompt": "x", "max_tokens": 60, "temperature": 1.5, "seed": seed, "structured_outputs": {"json": {"type": "array", "items": {"type": "null"}, "minItems": 2}, "whitespace_pattern": "[\n ]*"}})["choices"][0]
        check(all(v is None for v in json.loads(c["text"])), f"white space: {c['text']!r}")
        c = s.post("/v1/completions", {"prompt": "x", "max_tokens": 60, "temperature": 1.5, "seed": seed, "guided_json": {"type": "array", "items": {"type": "null"}, "minItems": 2}, "guided_whitespace_pattern": ""})["choices"][0]
        check(" " not in c["text"] and "\n" not in c["text"], f"no white space: {c['text']!r}")


def queue(program, model, drifting):
    """A full queue answers before a body is read; who leaves while queued costs no step."""
    s = Server(program, model, *slowed(drifting, 3), "--max-num-seqs", "1", "--max-num-queued-reqs", "2")
    long = json.dumps({"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}).encode()

    async def run():
        # One runs, slowly read; one waits.
        reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(long) + long)
        await reader.readuntil(b"data: ")
        waiting = json.dumps({"prompt": list(range(300, 700)), "max_tokens": 8}).encode()
        _, w2 = await asyncio.open_connection("127.0.0.1", s.port)
        w2.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(waiting) + waiting)
        until = time.time() + 60
        while s.metrics()["vllm:num_requests_waiting"] == 0 and s.metrics()["vllm:num_requests_running"] > 0 and time.time() < until: await asyncio.sleep(0.01)
        if s.metrics()["vllm:num_requests_waiting"] == 0: return check(False, "queue: the first request was over before the second came: make it longer")
        # The head alone, of a body that never comes.
        r3, w3 = await asyncio.open_connection("127.0.0.1", s.port)
        w3.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20000000\r\n\r\n")
        answer = await asyncio.wait_for(r3.readuntil(b"}"), 60)
        check(answer.startswith(b"HTTP/1.1 429") and b"retry-after:" in answer.lower() and b"queue_full" in answer, f"queue: {answer[:300]}")
        w3.close()
        w2.close()  # leaves the queue
        while s.metrics()["vllm:num_requests_waiting"] > 0 and time.time() < until: await asyncio.sleep(0.01)
        check(s.metrics()["vllm:num_requests_waiting"] == 0, "queue: a client that left is still waiting")
        writer.close()

    asyncio.run(run())
    m = s.idle()
    check(m["vllm:admission_rejections_total"] == 1, f"queue: {m['vllm:admission_rejections_total']} rejections")
    check(m["vllm:iteration_tokens_total_sum"] < 400 + 900 and m["vllm:iteration_tokens_total_count"] > 0, f"queue: {m['vllm:iteration_tokens_total_sum']} tokens ran")
    check(s.post("/v1/completions", {"prompt": "x", "max_tokens": 1})["usage"]["completion_tokens"] == 1, "queue: the next request")
    # Steps by their tokens: what ran is what was asked.
    a = s.metrics()
    s.post("/v1/completions", {"prompt": list(range(300, 340)), "max_tokens": 5, "ignore_eos": True})
    b = s.idle()
    steps, tokens = (b[f"vllm:iteration_tokens_total_{k}"] - a[f"vllm:iteration_tokens_total_{k}"] for k in ("count", "sum"))
    check((steps, tokens) == (5, 44), f"iteration_tokens_total: {steps} steps, {tokens} tokens")
    devices = [line for line in s.get("/metrics").splitlines() if line.startswith("qengine:device_memory_bytes{")]
    kinds = {k: float(line.rsplit(" ", 1)[1]) for line in devices for k in ("weights", "kv", "workspace", "graphs", "load_temp", "context", "other", "free") if f'kind="{k}"' in line}
    page = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    check(len(kinds) == 8 and kinds["weights"] > 0 and kinds["kv"] > 0 and kinds["free"] > 0 and sum(kinds.values()) <= page, f"device_memory_bytes: {kinds} of {page}")
    phases = [line for line in s.get("/metrics").splitlines() if line.startswith("qengine:load_seconds{")]
    check(all(any(f'phase="{p}"' in line for line in phases) for p in ("open", "read", "total")), f"load_seconds: {phases}")
    check('model_sha256="' in s.get("/metrics"), "build_info: no model_sha256")
    check(s.stop() == 0, "queue: SIGTERM")


def keys(program, model):
    """With keys set all but what says nothing of anybody (docs/operators.md) needs one; a wrong one gets OpenAI's body."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("secret-a\n# a comment\nsecret-b\n")
        f.flush()
        s = Server(program, model, "--api-key-file", f.name)
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {}), ("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]}), ("/admin/reload", {}), ("/admin/switch", {"to": "x"}), ("/admin/canary", {})):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret-a"}, {"Authorization": "Bearer secret-a "[:-2]}):
                status, error = refusal(s, path, body, headers)
                check(status == 401 and error["code"] == "invalid_api_key" and error["type"] == "invalid_request_error", f"keys: {path} {headers}: {status} {error}")
        for path in ("/v1/models", "/server_info", "/tokenizer_info", "/admin/status"):
            for key, want in ((None, 401), ("wrong", 401), ("secret-b", 200)):
                status, head, body = asyncio.run(request(s.port, "GET", path, headers=[f"Authorization: Bearer {key}"] if key else []))
                check(status == want, f"keys: {path} with {key}: {status}")
                if want == 401: check("www-authenticate" in head, f"keys: {path}: no WWW-Authenticate")
        for path in ("/health", "/ready", "/version", "/metrics", "/"): check(asyncio.run(request(s.port, "GET", path))[0] == 200, f"keys: {path} needs a key")
        check("secret-" not in s.text(), "keys: one is in the log")
        check(s.stop() == 0, "keys: SIGTERM")


def stats(program, model):
    """The line of figures every 10 s while something runs, unless it is switched off."""
    servers = [Server(program, model, "--log-level", "info", *flags) for flags in ((), ("--disable-log-stats",))]
    stop = threading.Event()

    def load(s):
        while not stop.is_set(): s.post("/v1/completions", {"prompt": "x", "max_tokens": 16, "ignore_eos": True})

    threads = [threading.Thread(target=load, args=(s,)) for s in servers]
    for t in threads: t.start()
    line, until = "Avg generation throughput: ", time.time() + 60
    while line not in servers[0].text() and time.time() < until: time.sleep(0.2)
    time.sleep(1)
    stop.set()
    for t in threads: t.join()
    check(line in servers[0].text(), "stats: no line of figures within a minute")
    check(line not in servers[1].text(), "stats: a line of figures though --disable-log-stats")
    for s in servers: check(s.stop() == 0, "stats: SIGTERM")


def main():
    program, model, drifting = sys.argv[1:4]
    s = Server(program, model, "--tool-call-parser", "hermes")
    for case in (characters, stops, echoes, tools, refusals): case(s)
    t = Server(program, model, "--reasoning-parser", "think")
    reasoning(t)
    check(t.stop() == 0, "SIGTERM")
    m = s.idle()
    check(m["vllm:kv_cache_usage_perc"] == 0, "blocks are held by nobody")
    check(s.stop() == 0, "SIGTERM")
    queue(program, model, drifting)
    for case in (keys, stats): case(program, model)
    for f in faults[:40]: print("fault:", f)
    print(f"{len(faults)} faults")
    sys.exit(1 if faults else 0)


main()
