"""The official openai client against the server: what its users rely on.

    openai_client_test.py PROGRAM MODEL

Skipped (exit 77) where the package is missing: tests/serve/setup.sh makes an environment that has it.
"""
import json, os, sys

sys.path.insert(0, os.path.dirname(__file__))
try:
    import openai
except ImportError:
    print("skipped: the Python package openai is not installed (tests/serve/setup.sh)")
    sys.exit(77)
from server_under_test import Server

faults = []


def check(ok, what):
    if not ok: faults.append(what)


def refused(kind, f, words):
    try:
        f()
        faults.append(f"accepted: {words}")
    except kind as e:
        check(words in str(e), f"{kind.__name__} without \"{words}\": {e}")
    except Exception as e:
        faults.append(f"{type(e).__name__} instead of {kind.__name__}: {e}")


def main():
    s = Server(sys.argv[1], sys.argv[2], "--log-level", "info", env={"QENGINE_API_KEY": "secret-1"})
    c = openai.OpenAI(base_url=s.url + "/v1", api_key="secret-1", max_retries=0)
    kw = dict(model="m", temperature=0)
    messages = [{"role": "user", "content": "Tell me about the sea."}]

    check([m.id for m in c.models.list()] == ["m"] and c.models.retrieve("m").id == "m", "models")

    whole = c.chat.completions.create(messages=messages, max_completion_tokens=24, **kw)
    usage = []
    text, finish = "", None
    for e in c.chat.completions.create(messages=messages, max_completion_tokens=24, stream=True, stream_options={"include_usage": True}, **kw):
        if e.usage: usage.append(e.usage)
        for ch in e.choices:
            text += ch.delta.content or ""
            finish = ch.finish_reason or finish
    check(text == whole.choices[0].message.content, "chat: streamed and whole text differ")
    check(finish == whole.choices[0].finish_reason, f"chat: finish {finish} and {whole.choices[0].finish_reason}")
    check(len(usage) == 1 and usage[0].completion_tokens == whole.usage.completion_tokens, "chat: usage comes once and is the same")

    r = c.chat.completions.create(messages=messages, max_completion_tokens=6, logprobs=True, top_logprobs=3, **kw)
    lp = r.choices[0].logprobs.content
    check(len(lp) == r.usage.completion_tokens, "chat logprobs: one a token")
    check(b"".join(bytes(x.bytes) for x in lp if not (x is lp[-1] and r.choices[0].finish_reason == "stop")).decode(errors="replace").startswith((r.choices[0].message.content or "")[:5]), "chat logprobs: bytes are the text's")
    check(all(len(x.top_logprobs) == 3 and x.top_logprobs[0].logprob == x.logprob for x in lp), "chat logprobs: the best is the chosen one at temperature 0")

    b = c.completions.create(prompt=["One two", "Three"], max_tokens=5, n=2, seed=1, model="m", temperature=1)
    check([x.index for x in b.choices] == [0, 1, 2, 3], "completions: choices by index")
    e = c.completions.create(prompt="One two three", echo=True, logprobs=1, max_tokens=1, **kw).choices[0]
    check("".join(e.logprobs.tokens) == e.text and e.logprobs.token_logprobs[0] is None and None not in e.logprobs.token_logprobs[1:], "completions: echo and logprobs")
    check(all(e.text[o:].startswith(t) for o, t in zip(e.logprobs.text_offset, e.logprobs.tokens)), "completions: offsets")
    full = c.completions.create(prompt="Count:", max_tokens=24, **kw).choices[0].text
    if len(full) > 4:
        stop = full[2:4]
        st = c.completions.create(prompt="Count:", max_tokens=24, stop=[stop], **kw).choices[0]
        check(stop not in st.text and st.finish_reason == "stop" and st.text == full[:full.index(stop)], "completions: stop")

    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer", "minimum": 1, "maximum": 999}}, "required": ["city", "people"], "additionalProperties": False}
    for cut in (200, 30):
        j = c.chat.completions.create(messages=messages, max_completion_tokens=cut, response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}, model="m", temperature=1, seed=3)
        v = json.loads(j.choices[0].message.content)
        check(set(v) == {"city", "people"} and 1 <= v["people"] <= 999 and len(v["city"]) <= 12, f"json_schema: {v}")
    json.loads(c.chat.completions.create(messages=messages, max_completion_tokens=60, response_format={"type": "json_object"}, model="m", temperature=1, seed=4).choices[0].message.content)
    tools = [{"type": "function", "function": {"name": "look", "parameters": schema}}, {"type": "function", "function": {"name": "wait"}}]
    for choice in ("required", {"type": "function", "function": {"name": "look"}}):
        t = c.chat.completions.create(messages=messages, max_completion_tokens=150, tools=tools, tool_choice=choice, parallel_tool_calls=False, model="m", temperature=1, seed=5).choices[0]
        check(t.message.tool_calls and t.finish_reason in ("tool_calls", "length"), f"tool_choice {choice}: {t}")
        for call in t.message.tool_calls or []:
            check(call.function.name in ("look", "wait") and isinstance(json.loads(call.function.arguments), dict), f"tool call {call}")
    calls = {}
    for e in c.chat.completions.create(messages=messages, max_completion_tokens=150, tools=tools, tool_choice="required", parallel_tool_calls=False, model="m", temperature=1, seed=5, stream=True):
        for d in e.choices[0].delta.tool_calls or []:
            call = calls.setdefault(d.index, {"name": "", "arguments": ""})
            call["name"] += d.function.name or ""
            call["arguments"] += d.function.arguments or ""
    check(len(calls) == 1 and json.loads(calls[0]["arguments"]) is not None, f"streamed tool call {calls}")

    refused(openai.NotFoundError, lambda: c.completions.create(prompt="a", model="other"), "does not exist")
    refused(openai.BadRequestError, lambda: c.completions.create(prompt="a", max_tokens=-1, model="m"), "max_tokens")
    refused(openai.BadRequestError, lambda: c.chat.completions.create(messages=messages, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}, model="m"), "\"not\" is not supported")
    refused(openai.AuthenticationError, lambda: openai.OpenAI(base_url=s.url + "/v1", api_key="wrong", max_retries=0).models.list(), "API key")

    # The log has a line for each request, with its id.
    c.completions.create(prompt="a", max_tokens=2, model="m", extra_headers={"X-Request-Id": "my-request-7"})
    check("my-request-7: length, " in s.text(), "the log lacks the request's id")

    # A client that closes its stream: nothing runs a moment later.
    stream = c.completions.create(prompt="a", max_tokens=400, stream=True, extra_body={"ignore_eos": True}, model="m")
    next(iter(stream))
    stream.close()
    s.idle()
    check("secret-1" not in s.text(), "the key is in the log")
    check(s.stop() == 0, "SIGTERM")
    for f in faults: print("fault:", f)
    print("openai", openai.__version__, "faults:", len(faults))
    sys.exit(1 if faults else 0)


main()
