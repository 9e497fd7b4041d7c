"""Greedy answers are the same whether the prefix cache is cold, warm, shared, too small or off.

    prefix_cache_test.py PROGRAM MODEL [--seed N]

The truth is a server without prefix cache that answers one request after the other.
"""
import argparse, os, random, sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(__file__))
from server_under_test import Server, admin

ANSWER = 24  # tokens: more than a block, so that answers fill blocks too


class Asked:
    """A server, and what it is asked: token ids in, token ids out, always greedy."""
    def __init__(self, program, model, *flags):
        self.server = Server(program, model, *flags)

    def __call__(self, ids, **more):
        r = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more})
        c = r["choices"][0]
        return c["token_ids"], c["text"], r["usage"]["prompt_tokens_details"]["cached_tokens"], c

    def together(self, prompts):
        with ThreadPoolExecutor(len(prompts)) as pool: return list(pool.map(self, prompts))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    rng = random.Random(args.seed)
    faults, compared = [], 0
    fresh = lambda n: [rng.randrange(300, 900) for _ in range(n)]

    for dtype, block in (("auto", 16), ("auto", 32), ("fp8", 16)):
        flags = ("--kv-cache-dtype", dtype, "--block-size", str(block))
        where = f"kv {dtype}, blocks of {block}"
        alone, cached = (Asked(args.program, args.model, "--max-model-len", "512", *flags, *more) for more in (["--no-enable-prefix-caching"], []))
        truth = {}

        def true(ids):
            key = tuple(ids)
            if key not in truth: truth[key] = alone(ids)
            return truth[key]

        def same(ids, got, what):
            nonlocal compared
            compared += 1
            want = true(ids)
            if got[:2] != want[:2]: faults.append(f"{where}: {what}, {len(ids)} tokens: {got[0]} and not {want[0]} ({got[2]} from the cache)")

        def hits(got, want, what):
            if got[2] != want: faults.append(f"{where}: {what}: {got[2]} tokens came from the cache, expected {want}")

        full = lambda n: n // block * block
        # Around the borders of blocks: cold, warm, longer, and going on from the answer.
        for n in (1, 2, block - 1, block, block + 1, 2 * block - 1, 2 * block, 2 * block + 1, 3 * block + block // 2, 5 * block):
            ids = fresh(n)
            cold = cached(ids)
            same(ids, cold, "cold")
            hits(cold, 0, f"cold, {n} tokens")
            if true(ids)[2]: faults.append(f"{where}: the server without a cache says {true(ids)[2]} cached tokens")
            warm = cached(ids)
            same(ids, warm, "warm")
            hits(warm, full(n - 1), f"warm, {n} tokens")  # the last token is always computed: its logits are needed
            longer = ids + fresh(3)
            got = cached(longer)
            same(longer, got, "longer")
            hits(got, full(n), f"longer, {n} + 3 tokens")
            turn = ids + cold[0] + fresh(2)
            got = cached(turn)
            same(turn, got, "going on from the answer")
            hits(got, full(n + ANSWER - 1), f"going on, {n} + {ANSWER} + 2 tokens")  # nobody has computed the last token of the answer
            other = list(ids)
            other[0] += 1
            got = cached(other)
            same(other, got, "another first token")
            hits(got, 0, f"another first token, {n} tokens")
            got = cached(ids, cache_salt="of somebody else")
            same(ids, got, "another salt")
            hits(got, 0, f"another salt, {n} tokens")

        # A conversation: every turn finds more than the one before.
        ids, seen = fresh(block + 5), [0]
        for turn in range(6):
            got = cached(ids)
            same(ids, got, f"turn {turn}")
            if turn and got[2] <= seen[-1]: faults.append(f"{where}: turn {turn} found {got[2]} tokens in the cache, the one before {seen[-1]}")
            seen.append(got[2])
            ids = ids + got[0] + fresh(1)

        # Log-probabilities of a prompt that is in the cache: none is missing, none is another.
        ids = fresh(3 * block)
        cold, warm = (cached(ids, prompt_logprobs=0)[3]["prompt_logprobs"] for _ in range(2))
        for what, lps in (("cold", cold), ("warm", warm)):
            if [i for i, e in enumerate(lps) if e is None] != [0]: faults.append(f"{where}: prompt_logprobs {what}: null at {[i for i, e in enumerate(lps) if e is None]}")
        value = lambda e, i: e[str(ids[i])]["logprob"]
        apart = max(abs(value(a, i) - value(b, i)) for i, (a, b) in enumerate(zip(cold, warm)) if a and b)
        if apart > 1e-4: faults.append(f"{where}: prompt_logprobs differ by {apart} between cold and warm")

        # Forgotten by hand: cold again, and the same again.
        status, reply = admin(cached.server, "POST", "/admin/reset_prefix_cache")
        if status != 200: faults.append(f"{where}: reset_prefix_cache: {status} {reply}")
        got = cached(ids)
        same(ids, got, "after a reset")
        hits(got, 0, "after a reset")

        # Many at once that share beginnings: racing for the same blocks while cold, all of them warm, and
        # in a cache so small that blocks are taken from each other and sequences computed again.
        stem = fresh(3 * block)
        prompts = [stem[:n] + fresh(k) for n in (0, block - 1, block, 2 * block + 1, 3 * block) for k in (1, 1, block)]
        prompts += [stem, stem, stem]
        for ids in prompts: true(ids)
        for what in ("at once, cold", "at once, warm"):
            for ids, got in zip(prompts, cached.together(prompts)): same(ids, got, what)
        longest = (max(map(len, prompts)) + ANSWER + block - 1) // block
        small = Asked(args.program, args.model, "--num-gpu-blocks-override", str(2 * longest + 3), "--max-model-len", str(longest * block), *flags)
        for round in range(3):
            rng.shuffle(prompts)
            for ids, got in zip(prompts, small.together(prompts)): same(ids, got, f"at once in a small cache, round {round}")
        m = small.server.idle()
        if m["vllm:num_preemptions_total"] == 0: faults.append(f"{where}: the small cache was not too small: nothing was preempted")
        if m["vllm:kv_cache_usage_perc"] != 0: faults.append(f"{where}: {m['vllm:kv_cache_usage_perc']} of the blocks are held by nobody")
        m = cached.server.idle()
        if not 0 < m["vllm:prefix_cache_hits_total"] < m["vllm:prefix_cache_queries_total"]: faults.append(f"{where}: {m['vllm:prefix_cache_hits_total']} hits of {m['vllm:prefix_cache_queries_total']}")
        if m["vllm:prompt_tokens_cached_total"] != m["vllm:prefix_cache_hits_total"]: faults.append(f"{where}: prompt_tokens_cached_total is not prefix_cache_hits_total")
        for s in (alone, cached, small):
            if s.server.stop() != 0: faults.append(f"{where}: a server did not end well:\n{s.server.text()[-2000:]}")
    for f in faults[:40]: print("fault:", f)
    print(f"{compared} answers compared, {len(faults)} faults")
    sys.exit(1 if faults else 0)


main()
