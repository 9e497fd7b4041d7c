"""Checkpoints of the kinds people have, in spellings and shapes that the fixtures lack: random codes and scales, whose
dequantized values are known by construction, through `qengine export --dtype f32`.

usage: try_variants.py QENGINE [PATTERN]      prints what differs or fails, and how many hold; exit 1 if any does not
Needs numpy. A variant is (name, config, tensors, what must come out): a dict of float32 matrices, or a regular expression that
the refusal must match. Layouts from formats.md 3 to 9; W = s * (q - z) in float32, each operation rounded once.
"""
import json, pathlib, re, struct, subprocess, sys, tempfile
try: import numpy as np
except ImportError: print("skipped: numpy is not installed"); sys.exit(77)

rng = np.random.default_rng(11)
F32, F16, I32, I64, U8, I8 = np.float32, np.float16, np.int32, np.int64, np.uint8, np.int8
H, I, HEADS, KV, HD, V = 96, 160, 4, 2, 32, 64


class Raw:
    """Bytes with a safetensors dtype that numpy has no type for."""
    def __init__(self, dtype, a): self.dtype, self.a, self.shape = dtype, np.ascontiguousarray(a), list(a.shape)


def bf16_bits(a): u = np.asarray(a, F32).view(np.uint32); return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
def bf16(a): return Raw("BF16", bf16_bits(a))
def bf16_value(a): return (bf16_bits(a).astype(np.uint32) << 16).view(F32).reshape(np.shape(a))
def e4m3_table():
    e, m = np.arange(256) >> 3 & 15, np.arange(256) & 7
    v = np.where(e == 0, m * 2.0**-9, (1 + m / 8) * 2.0**(e - 7.0)); v = np.where(np.arange(256) & 128, -v, v).astype(F32)
    v[[127, 255]] = np.nan; return v
E4M3 = e4m3_table()
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], F32)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def stream(q, bits, axis):
    """Codes as one stream of bits along an axis, lowest first, in int32 words."""
    q = np.moveaxis(q, axis, -1).astype(np.uint8)
    b = (q[..., None] >> np.arange(bits) & 1).reshape(*q.shape[:-1], -1).astype(np.uint8)
    b = np.pad(b, [(0, 0)] * (b.ndim - 1) + [(0, -b.shape[-1] % 32)])
    return np.ascontiguousarray(np.moveaxis(np.packbits(b, axis=-1, bitorder="little").view(I32), -1, axis))


def safetensors(T):
    names = {np.dtype(F32): "F32", np.dtype(F16): "F16", np.dtype(I32): "I32", np.dtype(I64): "I64", np.dtype(U8): "U8", np.dtype(I8): "I8", np.dtype(np.int16): "I16"}
    h, data, o = {}, [], 0
    for k, t in T.items():
        raw = isinstance(t, Raw); a = t.a if raw else np.ascontiguousarray(t); b = a.tobytes()
        h[k] = dict(dtype=t.dtype if raw else names[a.dtype], shape=list(t.shape), data_offsets=[o, o + len(b)]); o += len(b); data.append(b)
    j = json.dumps(h).encode(); j += b" " * (-len(j) % 8)
    return struct.pack("<Q", len(j)) + j + b"".join(data)


def read(path):
    raw = path.read_bytes(); n = struct.unpack("<Q", raw[:8])[0]; out = {}
    for k, v in json.loads(raw[8:8 + n]).items():
        if k != "__metadata__": a, b = v["data_offsets"]; out[k] = np.frombuffer(raw[8 + n + a:8 + n + b], F32).reshape(v["shape"])
    return out


def config(arch="Llama", **kw):
    c = dict(architectures=[arch + "ForCausalLM"], model_type=arch.lower(), vocab_size=V, hidden_size=H, intermediate_size=I, num_hidden_layers=1, num_attention_heads=HEADS, num_key_value_heads=KV,
             head_dim=HD, hidden_act="silu", max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=1e4, tie_word_embeddings=True, torch_dtype="bfloat16", bos_token_id=None, eos_token_id=0)
    if arch == "Qwen2": del c["head_dim"]; c.update(num_attention_heads=3, num_key_value_heads=1)
    return dict(c, **kw)


def linears(c):
    h, kv, hd = c["num_attention_heads"], c["num_key_value_heads"], c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    L = "model.layers.0."
    return {L + "self_attn.q_proj": (h * hd, H), L + "self_attn.k_proj": (kv * hd, H), L + "self_attn.v_proj": (kv * hd, H), L + "self_attn.o_proj": (H, h * hd),
            L + "mlp.gate_proj": (I, H), L + "mlp.up_proj": (I, H), L + "mlp.down_proj": (H, I)}


def plain(n, k): return bf16(rng.normal(size=(n, k)) * .1)
def plain_value(t): return (t.a.astype(np.uint32) << 16).view(F32)


def model(c, module, only=lambda P: True, head=None, embed=None, bias=False):
    """Tensors and expected matrices; module(n, k) -> (tensors by suffix, W). Modules that `only` leaves out stay BF16."""
    T, W = {"model.norm.weight": bf16(np.ones(H)), "model.layers.0.input_layernorm.weight": bf16(np.ones(H)), "model.layers.0.post_attention_layernorm.weight": bf16(np.ones(H))}, {}
    def put(P, n, k, f):
        if f is None: t = plain(n, k); T[P + ".weight"], W[P] = t, plain_value(t); return
        t, w = f(n, k); W[P] = w
        for s, x in t.items(): T[P + "." + s] = x
    for P, (n, k) in linears(c).items():
        put(P, n, k, (module(P) if module.__code__.co_argcount == 1 else module) if only(P) else None)
        if bias or (c["model_type"] == "qwen2" and P.split(".")[-1] in ("q_proj", "k_proj", "v_proj")): T[P + ".bias"] = (rng.normal(size=n) * .1).astype(F16)
    put("model.embed_tokens", c["vocab_size"], H, embed)
    if not c["tie_word_embeddings"] or head: put("lm_head", c["vocab_size"], H, head)
    return T, W


def gptq(g=32, bits=4, sym=True, version=1, order=None, sdt=F16, zeros=True):
    def make(n, k):
        gs = k if g < 0 else g; G = -(-k // gs); q = rng.integers(0, 1 << bits, (k, n)); z = np.full((G, n), 1 << (bits - 1)) if sym else rng.integers(0 if version == 2 else 1, 1 << bits, (G, n))
        s = (rng.random((G, n)) * .02 + .001).astype(F32); stored = s.astype(F16) if sdt is F16 else bf16(s) if sdt == "BF16" else s
        s = stored.astype(F32) if sdt != "BF16" else bf16_value(s)
        gi = np.arange(k) // gs
        if order == "shuffled": gi = rng.permutation(gi)
        w = (s[gi] * (q - z[gi]).astype(F32)).T
        t = dict(qweight=stream(q, bits, 0), qzeros=stream((z - (version == 1)) % (1 << bits), bits, 1), scales=stored)
        if order != "absent": t["g_idx"] = (np.zeros(k) if order == "zero" else gi).astype(I32)
        return t, np.ascontiguousarray(w)
    return make


def awq(g=32, layout="gemm", zero=True, sdt=F16):
    def make(n, k):
        gs = k if g < 0 else g; G = k // gs; q = rng.integers(0, 16, (k, n)); z = rng.integers(0, 16, (G, n)) if zero else np.full((G, n), 8)
        s = (rng.random((G, n)) * .02 + .001).astype(F16); gi = np.arange(k) // gs
        w = np.ascontiguousarray((s.astype(F32)[gi] * (q - z[gi]).astype(F32)).T)
        if layout == "gemm":
            word = lambda x: stream(x.reshape(x.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(x.shape), 4, 1)
            t = dict(qweight=word(q), scales=s if sdt is F16 else bf16(s)); 
            if sdt is not F16: w = np.ascontiguousarray((bf16_value(s.astype(F32))[gi] * (q - z[gi]).astype(F32)).T)
            if zero: t["qzeros"] = word(z)
        else:
            zw = -(-G // 8); step = {128: 1, 64: 2, 32: 4}.get(gs, 1); zw = -(-zw // step) * step
            t = dict(qweight=stream(q.T, 4, 1), scales=np.pad(s.T, [(0, 0), (0, 8 * zw - G)]))
            t["qzeros"] = stream(np.pad(z.T, [(0, 0), (0, 8 * zw - G)]), 4, 1)
        return t, w
    return make


def codes8(n, k): c = rng.integers(0, 256, (n, k)); return np.where((c & 127) == 127, 0, c).astype(U8)


def fp8(kind="tensor", sdt=F32, name=None, shape=None, block=128, act=None, as_u8=False):
    def make(n, k):
        c = codes8(n, k); q = E4M3[c]
        if kind == "tensor": s = np.array(rng.random() * .01 + .001, F32); grid = s.reshape(1, 1)
        elif kind == "row": s = (rng.random((n, 1)) * .01 + .001).astype(F32); grid = s
        else: s = (rng.random((-(-n // block), -(-k // block))) * .01 + .001).astype(F32); grid = None
        if sdt == "E8M0": b = rng.integers(110, 125, s.shape).astype(U8); s = (b.astype(np.uint32) << 23).view(F32).reshape(s.shape); stored = Raw("F8_E8M0", b)
        elif sdt == "BF16": s = bf16_value(s); stored = bf16(s)
        else: stored = s.astype(sdt); s = stored.astype(F32)
        if kind == "block": grid = np.repeat(np.repeat(s, block, 0)[:n], block, 1)[:, :k]
        else: grid = s.reshape(1, 1) if kind == "tensor" else s.reshape(n, 1)
        if shape is not None:
            new = [n if d == "n" else d for d in shape]
            if isinstance(stored, Raw): stored.shape = new
            else: stored = stored.reshape(new)
        t = {"weight": c if as_u8 else Raw("F8_E4M3", c), name or ("weight_scale_inv" if kind == "block" else "weight_scale"): stored}
        if act is not None: t["input_scale"] = np.array(act, F32)
        return t, (q * grid).astype(F32)
    return make


def ct_int(bits=4, g=32, zero=None, order=None, sdt="BF16"):
    def make(n, k):
        gs = k if g is None else g; G = -(-k // gs); half = 1 << (bits - 1); q = rng.integers(0, 1 << bits, (n, k)); s = bf16_value(rng.random((n, G)) * .02 + .001)
        z = rng.integers(0, 1 << bits, (n, G)) if zero else np.full((n, G), half); gi = np.arange(k) // gs
        if order: gi = rng.permutation(gi)
        t = dict(weight_packed=stream(q, bits, 1), weight_scale=bf16(s), weight_shape=np.array([n, k], I64))
        if zero == "packed": t["weight_zero_point"] = stream(z, bits, 0)
        if zero == "bytes": t["weight_zero_point"] = (z - half).astype(I8)
        if order: t["weight_g_idx"] = gi.astype(I32)
        return t, ((q - z[:, gi]).astype(F32) * s[:, gi]).astype(F32)
    return make


def int8(zero=False, scale_shape=None):
    def make(n, k):
        q = rng.integers(-128, 128, (n, k)); s = bf16_value(rng.random((n, 1)) * .01 + .001); z = rng.integers(-8, 8, (n, 1)) if zero else np.zeros((n, 1), int)
        t = dict(weight=q.astype(I8), weight_scale=bf16(s))
        if zero: t["weight_zero_point"] = z.astype(I8)
        return t, ((q - z).astype(F32) * s).astype(F32)
    return make


NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], F32)


def nf4(block=64, double=False, storage=U8, compute="bfloat16"):
    def make(n, k):
        c = rng.integers(0, 16, n * k); nb = -(-n * k // block); state = dict(quant_type="nf4", blocksize=block, dtype=compute, shape=[n, k])
        t = {}
        if double:
            u = rng.integers(0, 256, nb).astype(U8); m2 = np.sort(rng.normal(size=256)).astype(F32); a2 = (rng.random(-(-nb // 256)) * .1 + .01).astype(F32); off = F32(.2)
            am = (m2[u] * a2[np.arange(nb) // 256] + off).astype(F32)
            t.update({"weight.absmax": u, "weight.nested_absmax": a2, "weight.nested_quant_map": m2}); state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=float(off))
        else: am = (rng.random(nb) * .1 + .01).astype(F32); t["weight.absmax"] = am
        packed = (c[0::2] << 4 | c[1::2]).astype(U8); t["weight"] = (packed if storage is U8 else packed.view(storage)).reshape(-1, 1)
        if storage == np.uint16: t["weight"] = Raw("BF16", packed.view(np.uint16).reshape(-1, 1))
        t["weight.quant_map"] = NF4; t["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), U8)
        return t, (NF4[c] * am[np.arange(n * k) // block]).reshape(n, k).astype(F32)
    return make


def mxfp4():
    def make(n, k):
        c = rng.integers(0, 16, (n, k)); b = rng.integers(115, 127, (n, k // 32)).astype(U8); s = (b.astype(np.uint32) << 23).view(F32)
        return dict(weight_packed=(c[:, 0::2] | c[:, 1::2] << 4).astype(U8), weight_scale=b), (E2M1[c] * np.repeat(s, 32, 1)).astype(F32)
    return make


def nvfp4(name="weight_packed", divisor=True):
    def make(n, k):
        c = rng.integers(0, 16, (n, k)); sc = rng.integers(1, 120, (n, k // 16)).astype(U8); G = F32(400.0)
        t = {name: (c[:, 0::2] | c[:, 1::2] << 4).astype(U8), "weight_scale": Raw("F8_E4M3", sc)}
        s = np.repeat(E4M3[sc], 16, 1)
        if divisor: t["weight_global_scale"] = np.array([G]); return t, ((E2M1[c] * s).astype(F32) / G).astype(F32)
        t["weight_scale_2"] = np.array(F32(.0025)); return t, ((E2M1[c] * s).astype(F32) * F32(.0025)).astype(F32)
    return make


QG = lambda g=32, **kw: dict(dict(quant_method="gptq", bits=4, group_size=g, sym=True, desc_act=False), **kw)
QA = lambda g=32, **kw: dict(dict(quant_method="awq", bits=4, group_size=g, zero_point=True, version="gemm"), **kw)
CW = lambda bits=4, g=32, **kw: dict(dict(num_bits=bits, type="int", symmetric=True, strategy="group" if g else "channel", group_size=g, dynamic=False), **kw)
def ct(groups, fmt, **kw): return dict(dict(quant_method="compressed-tensors", format=fmt, quantization_status="compressed", ignore=["lm_head"], config_groups=groups), **kw)
def group(weights, targets=("Linear",), **kw): return dict(dict(targets=list(targets), weights=weights, input_activations=None, output_activations=None), **kw)
F8W = lambda strategy="tensor", **kw: dict(dict(num_bits=8, type="float", symmetric=True, strategy=strategy, dynamic=False), **kw)
attn = lambda P: "self_attn" in P
VARIANTS = []


def add(name, c, qc, T, W, files=None, flags=(), warn=None): VARIANTS.append((name, dict(c, **({"quantization_config": qc} if qc is not None else {})), T, W, files or {}, flags, warn))


def build():
    c = config()
    for bits in (2, 3, 4, 8):
        for g in (32, 16, -1, 48, 40):
            for sym in (True, False): add(f"gptq-w{bits}-g{g}-{'sym' if sym else 'asym'}", c, QG(g, bits=bits, sym=sym, checkpoint_format="gptq"), *model(c, gptq(g, bits, sym)))
    add("gptq-v2-asym", c, QG(sym=False, checkpoint_format="gptq_v2"), *model(c, gptq(32, sym=False, version=2)))
    add("gptq-v2-sym-labelled-v1", c, QG(checkpoint_format="gptq"), *model(c, gptq(32, version=2)))
    add("gptq-v1-labelled-v2", c, QG(checkpoint_format="gptq_v2"), *model(c, gptq(32)))
    add("gptq-format-key", c, QG(sym=False, format="gptq_v2"), *model(c, gptq(32, sym=False, version=2)))
    for order in ("shuffled", "absent", "zero"): add(f"gptq-order-{order}", c, QG(desc_act=order == "shuffled"), *model(c, gptq(32, order=order)))
    add("gptq-order-shuffled-flag-false", c, QG(), *model(c, gptq(32, order="shuffled")))
    add("gptq-desc_act-gm1", c, QG(-1, desc_act=True), *model(c, gptq(-1, order="zero")))
    for arch in ("Qwen2", "Mistral", "Llama"): k = config(arch); add(f"gptq-{arch}-bias", k, QG(), *model(k, gptq(32), bias=arch != "Mistral"))
    k = config(tie_word_embeddings=False); add("gptq-head-untied", k, QG(lm_head=True), *model(k, gptq(32), head=gptq(32)))
    add("gptq-head-tied-own", c, QG(lm_head=True), *model(c, gptq(32), head=gptq(32)))
    add("gptq-embedding", k, QG(lm_head=True), *model(k, gptq(32), head=gptq(32), embed=gptq(32)))
    add("gptq-scales-bf16", c, QG(), *model(c, gptq(32, sdt="BF16")))
    T, W = model(c, lambda P: gptq(32, bits=8 if "down" in P else 4), only=lambda P: "v_proj" not in P)
    add("gptq-dynamic", c, QG(dynamic={r"+:.*\.down_proj.*": {"bits": 8}, r"-:.*v_proj": {}}), T, W)
    add("gptq-dynamic-plain-key", c, QG(dynamic={r".*\.down_proj": {"bits": 8}, r"-:model\.layers\.\d+\.self_attn\.v_proj": {}}), T, W)
    T, W = model(c, gptq(32), only=lambda P: "mlp" in P); add("gptq-modules_in_block", c, QG(modules_in_block_to_quantize=[["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]), T, W)
    add("gptq-quantize_config.json", c, None, *model(c, gptq(32)), files={"quantize_config.json": json.dumps(dict(bits=4, group_size=32, desc_act=False, sym=True, damp_percent=.1))})
    add("gptq-upper-case", c, QG(quant_method="GPTQ"), *model(c, gptq(32)))
    add("gptq-strings", c, QG(bits="4"), *model(c, gptq(32))[:1], r"E[23]\d\d.*bits")
    add("autoround", c, dict(quant_method="auto-round", bits=4, group_size=32, sym=True, data_type="int", packing_format="auto_round:auto_gptq", block_name_to_quantize="model.layers",
                             extra_config={"model.layers.0.self_attn.v_proj": {"bits": 16}}), *model(c, gptq(32), only=lambda P: "v_proj" not in P))
    for packing, version in (("auto_round:auto_gptq", 1), ("auto_round:gptqmodel", 2), ("auto_round", 2)):
        add(f"autoround-asym-{packing}", c, dict(quant_method="auto-round", bits=4, group_size=32, sym=False, data_type="int", packing_format=packing), *model(c, gptq(32, sym=False, version=version)))
    add("autoround-asym-backend", c, dict(quant_method="intel/auto-round", bits=4, group_size=32, sym=False, data_type="int", backend="auto_round:exllamav2"), *model(c, gptq(32, sym=False, version=2, order="absent")))
    add("autoround-intel-awq", c, dict(quant_method="intel/auto-round", bits=4, group_size=32, sym=False, data_type="int", packing_format="auto_round:auto_awq"), *model(c, awq(32)))
    for g in (32, 16, 48, -1):
        for zero in (True, False):
            if g not in (48,) : T, W = model(c, lambda P: awq(g, zero=zero))
            else: T, W = model(c, awq(g, zero=zero), only=lambda P: not P.endswith(("down_proj", "o_proj")))
            add(f"awq-g{g}-{'zero' if zero else 'nozero'}", c, QA(g, zero_point=zero), T, W)
    add("awq-gemv", c, QA(32, version="gemv"), *model(c, awq(32, layout="gemv")))
    add("awq-GEMM-upper", c, QA(32, version="GEMM"), *model(c, awq(32)))
    add("awq-bf16-scales", c, QA(32), *model(c, awq(32, sdt="BF16")))
    k = config("Qwen2"); add("awq-qwen2-bias", k, QA(32), *model(k, awq(32)))
    for i, skip in enumerate((["self_attn"], ["model.layers.0.self_attn"], ["layers.0.self_attn."], ["model.layers.0.self_attn.q_proj", "k_proj", "v_proj", "o_proj"], None)):
        add(f"awq-skip-{i}", c, QA(32, modules_to_not_convert=skip), *model(c, awq(32), only=lambda P: not attn(P)))
    add("awq-quant_config.json", c, None, *model(c, awq(32)), files={"quant_config.json": json.dumps(dict(zero_point=True, q_group_size=32, w_bit=4, version="GEMM"))})
    k = config(tie_word_embeddings=False); add("awq-embedding-and-head", k, QA(32, lm_head=True), *model(k, awq(32), head=awq(32), embed=awq(32)))
    for shape in ([], [1], [1, 1]):
        for sdt in (F32, F16, "BF16"): add(f"fp8-tensor-{shape}-{sdt if sdt == 'BF16' else np.dtype(sdt).name}", c, dict(quant_method="fp8", activation_scheme="dynamic"), *model(c, fp8("tensor", sdt, shape=shape)))
    add("fp8-static", c, dict(quant_method="fp8", activation_scheme="static", ignored_layers=["lm_head"]), *model(c, fp8("tensor", act=.05)))
    for shape in (["n", 1], ["n"]): add(f"fp8-row-{len(shape)}d", c, dict(quant_method="fp8", activation_scheme="dynamic"), *model(c, fp8("row", shape=shape)))
    for b, sdt in ((128, F32), (128, "BF16"), (128, "E8M0"), (64, F32), (32, F32)):
        add(f"fp8-block{b}-{sdt if isinstance(sdt, str) else 'F32'}", c, dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[b, b], fmt="e4m3"), *model(c, fp8("block", sdt, block=b)))
    add("fp8-as-u8", c, dict(quant_method="fp8", activation_scheme="dynamic"), *model(c, fp8("tensor", as_u8=True)))
    for i, skip in enumerate((["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.o_proj"], ["q_proj", "k_proj", "v_proj", "o_proj"], ["self_attn"],
                              ["layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj", "re:.*v_proj", "*.o_proj"])):
        for key in ("ignored_layers", "modules_to_not_convert"): add(f"fp8-{key}-{i}", c, {"quant_method": "fp8", "activation_scheme": "dynamic", key: skip}, *model(c, fp8("tensor"), only=lambda P: not attn(P)))
    for names in (("self_attn.k_scale", "self_attn.v_scale"), ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"), ("self_attn.kv_scale",), ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
                  ("self_attn.qkv_proj.k_scale", "self_attn.qkv_proj.v_scale"), ("self_attn.attn.k_scale", "self_attn.attn.v_scale"), ("self_attn.q_scale", "self_attn.k_scale", "self_attn.v_scale")):
        T, W = model(c, fp8("tensor")); T.update({"model.layers.0." + n: np.array([.5], F32) for n in names}); add("kv-" + "+".join(n.removeprefix("self_attn.") for n in names), c, dict(quant_method="fp8", activation_scheme="dynamic"), T, W)
    add("modelopt-fp8", c, None, *model(c, fp8("tensor", act=.05, shape=[])), files={"hf_quant_config.json": json.dumps(dict(producer=dict(name="modelopt", version="0.29"), quantization=dict(quant_algo="FP8", kv_cache_quant_algo=None, exclude_modules=["lm_head"])))})
    add("modelopt-fp8-config", c, dict(quant_method="modelopt", quant_algo="FP8", ignore=["lm_head"], producer=dict(name="modelopt")), *model(c, fp8("tensor", act=.05, shape=[])))
    add("modelopt-wildcards", c, None, *model(c, fp8("tensor", act=.05, shape=[]), only=lambda P: not attn(P)), files={"hf_quant_config.json": json.dumps(dict(quantization=dict(quant_algo="FP8", exclude_modules=["lm_head", "model.layers.0.self_attn*"])))})
    add("modelopt-row", c, None, *model(c, fp8("row", shape=["n"])), files={"hf_quant_config.json": json.dumps(dict(quantization=dict(quant_algo="FP8_PER_CHANNEL_PER_TOKEN", exclude_modules=["lm_head"])))})
    add("modelopt-nvfp4", c, None, *model(c, nvfp4("weight", False)), files={"hf_quant_config.json": json.dumps(dict(quantization=dict(quant_algo="NVFP4", group_size=16, exclude_modules=["lm_head"])))})
    add("fbgemm", c, dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=["lm_head"]), *model(c, fp8("row")))
    add("fbgemm-skip", c, dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=["model.layers.0.self_attn.q_proj", "o_proj"]), *model(c, fp8("row"), only=lambda P: not P.endswith(("q_proj", "o_proj"))))
    for bits in (2, 3, 4, 5, 6, 7, 8):
        for g in (32, None): add(f"ct-w{bits}-g{g}", c, ct(dict(group_0=group(CW(bits, g))), "pack-quantized"), *model(c, ct_int(bits, g)))
    for zero in ("packed", "bytes"): add(f"ct-asym-{zero}", c, ct(dict(group_0=group(CW(symmetric=False))), "pack-quantized"), *model(c, ct_int(zero=zero)))
    add("ct-asym-w8", c, ct(dict(group_0=group(CW(8, symmetric=False))), "pack-quantized"), *model(c, ct_int(8, zero="packed")))
    for a in ("group", True, "dynamic"): add(f"ct-actorder-{a}", c, ct(dict(group_0=group(CW(actorder=a))), "pack-quantized"), *model(c, ct_int(order=True)))
    for a in ("weight", "static", None): add(f"ct-actorder-{a}", c, ct(dict(group_0=group(CW(actorder=a))), "pack-quantized"), *model(c, ct_int()))
    add("ct-mixed", c, ct(dict(group_0=group(F8W("channel"), ["re:.*self_attn.*"], format="float-quantized"), group_1=group(CW(), ["re:.*mlp.*"], format="pack-quantized")), "mixed-precision"),
        *model(c, lambda P: fp8("row", "BF16") if attn(P) else ct_int()))
    add("ct-mixed-no-format-in-groups", c, ct(dict(group_0=group(CW(8), ["re:.*self_attn.*"]), group_1=group(CW(4), ["re:.*mlp.*"])), "pack-quantized"), *model(c, lambda P: ct_int(8 if attn(P) else 4)))
    add("ct-targets-names", c, ct(dict(group_0=group(CW(), ["model.layers.0.mlp.gate_proj", "re:.*up_proj", "model.layers.0.mlp.down_proj"])), "pack-quantized"), *model(c, ct_int(), only=lambda P: "mlp" in P))
    add("ct-ignore-re", c, ct(dict(group_0=group(CW())), "pack-quantized", ignore=["lm_head", "re:.*self_attn.*"]), *model(c, ct_int(), only=lambda P: not attn(P)))
    add("ct-compression_config", dict(c, compression_config=ct(dict(group_0=group(CW())), "pack-quantized")), None, *model(c, ct_int()))
    add("ct-no-quant_method", c, {k: v for k, v in ct(dict(group_0=group(CW())), "pack-quantized").items() if k != "quant_method"}, *model(c, ct_int()))
    for s in ("tensor", "channel"): add(f"ct-fp8-{s}", c, ct(dict(group_0=group(F8W(s))), "float-quantized"), *model(c, fp8("tensor" if s == "tensor" else "row", "BF16", shape=[1] if s == "tensor" else None)))
    add("ct-fp8-naive", c, ct(dict(group_0=group(F8W("channel"))), "naive-quantized"), *model(c, fp8("row", "BF16")))
    add("ct-fp8-block", c, ct(dict(group_0=group(F8W("block", block_structure=[128, 128]))), "float-quantized"), *model(c, fp8("block", "BF16", name="weight_scale")))
    add("ct-fp8-block-text", c, ct(dict(group_0=group(F8W("block", block_structure="128x128"))), "float-quantized"), *model(c, fp8("block", "BF16", name="weight_scale")))
    add("ct-int8", c, ct(dict(group_0=group(CW(8, None), input_activations=dict(num_bits=8, type="int", strategy="token", dynamic=True, symmetric=True))), "int-quantized"), *model(c, int8()))
    add("ct-int8-asym-weights", c, ct(dict(group_0=group(CW(8, None, symmetric=False))), "int-quantized"), *model(c, int8(zero=True)))
    add("ct-mxfp4", c, ct(dict(group_0=group(dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32, scale_dtype="torch.uint8", dynamic=False))), "mxfp4-pack-quantized", version="0.14.1"), *model(c, mxfp4()))
    add("ct-mxfp4-old", c, ct(dict(group_0=group(dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32, scale_dtype="torch.uint8", dynamic=False))), "mxfp4-pack-quantized", version="0.13.0"), model(c, mxfp4())[0], r"E[23]\d\d.*(version|0\.13)")
    add("ct-nvfp4", c, ct(dict(group_0=group(dict(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16, dynamic=False))), "nvfp4-pack-quantized"), *model(c, nvfp4()))
    for double in (False, True):
        for block in (64, 128): add(f"bnb-nf4-{'dq' if double else 'plain'}-{block}", c, dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double, bnb_4bit_compute_dtype="bfloat16"), *model(c, nf4(block, double)))
    add("bnb-nf4-f32-storage", c, dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_quant_storage="float32"), *model(c, nf4(storage=F32)))
    add("bnb-nf4-bf16-storage", c, dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_quant_storage="bfloat16"), *model(c, nf4(storage=np.uint16)))
    add("bnb-skip", c, dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=["lm_head", "self_attn"]), *model(c, nf4(), only=lambda P: not attn(P)))
    # after public reports: groups named by scheme, one-dimensional channel scales (TensorRT-LLM#15415), static int8 (sglang#29530), four-dimensional block scales (vllm#50617), probability scales (vllm#41174)
    add("ct-group-by-scheme", c, ct(dict(FP8_DYNAMIC=group(F8W("channel"))), "float-quantized"), *model(c, fp8("row", "BF16", shape=["n"])))
    def static8(n, k): t, w = int8()(n, k); t["input_scale"] = bf16(np.array([rng.random() * .1 + .01])); return t, w
    add("ct-int8-static", c, ct(dict(group_0=group(CW(8, None), input_activations=dict(num_bits=8, type="int", strategy="tensor", dynamic=False, symmetric=True))), "int-quantized"), *model(c, static8))
    def static8z(n, k): t, w = static8(n, k); t["input_zero_point"] = np.array([-3], I8); return t, w
    add("ct-int8-static-zero", c, ct(dict(group_0=group(CW(8, None), input_activations=dict(num_bits=8, type="int", strategy="tensor", dynamic=False, symmetric=False))), "int-quantized"), *model(c, static8z))
    def pb(n, k): t, w = fp8("block", name="weight_scale")(n, k); s = t["weight_scale"]; t["weight_scale"] = s.reshape(s.shape[0], 1, s.shape[1], 1); return t, w
    add("modelopt-pb-wo", c, None, *model(c, pb), files={"hf_quant_config.json": json.dumps(dict(quantization=dict(quant_algo="FP8_PB_WO", exclude_modules=["lm_head"])))})
    for shape in ([], [1], [1, 1], [KV], [KV, 1, 1]):
        T, W = model(c, fp8("row", "BF16")); T.update({f"model.layers.0.self_attn.{n}_scale": np.full(shape, .5, F32) for n in "kv"})
        add(f"kv-shape-{shape}", c, ct(dict(group_0=group(F8W("channel"))), "float-quantized", kv_cache_scheme=dict(num_bits=8, type="float", strategy="attn_head" if shape and shape[0] == KV else "tensor", dynamic=False, symmetric=True)), T, W)
    T, W = model(c, fp8("tensor")); T.update({f"model.layers.0.self_attn.attn.{n}_scale": np.array(.5, F32) for n in ("q", "k", "v", "prob")}); add("kv-prob_scale", c, dict(quant_method="fp8", activation_scheme="dynamic"), T, W)
    add("awq-no-skip-list", c, {k: v for k, v in QA(32).items()}, *model(c, awq(32), only=lambda P: not attn(P)))
    add("gptq-all-plain", c, QG(), *model(c, gptq(32), only=lambda P: False))
    k = config(arch="Mistral", sliding_window=None); add("mistral-awq", k, QA(32), *model(k, awq(32)))
    k = config(torch_dtype=None, dtype="torch.float16"); add("dtype-with-prefix", k, QG(), *model(k, gptq(32)))
    # matrices that are computed together and differ: in bits, in zero points, in order, in being quantized at all
    last = lambda P: P.rsplit(".", 1)[1]
    F8 = dict(quant_method="fp8", activation_scheme="dynamic"); N4 = dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4")
    add("gptq-bits-in-qkv", c, QG(dynamic={r".*q_proj": {"bits": 8}, r".*up_proj": {"bits": 8, "group_size": 16}}), *model(c, lambda P: gptq(32, 8) if last(P) == "q_proj" else gptq(16, 8) if last(P) == "up_proj" else gptq(32)))
    add("gptq-sym-in-qkv", c, QG(dynamic={r".*k_proj": {"sym": False}}), *model(c, lambda P: gptq(32, sym=last(P) != "k_proj")))
    add("gptq-order-in-qkv", c, QG(dynamic={r".*(q|up)_proj": {"desc_act": True}}), *model(c, lambda P: gptq(32, order="shuffled" if last(P) in ("q_proj", "up_proj") else None)))
    for bare in ("q_proj", "k_proj", "gate_proj"):
        for name, qc, make in (("gptq", QG(), gptq(32)), ("awq", QA(), awq(32)), ("fp8", F8, fp8("tensor")), ("nf4", N4, nf4()), ("ct", ct(dict(group_0=group(CW())), "pack-quantized", ignore=[f"re:.*{bare}"]), ct_int())):
            add(f"{name}-{bare}-plain", c, qc, *model(c, make, only=lambda P: last(P) != bare))
    # rules in the names of what engines compute together (vllm#31623, GPTQModel#1485)
    add("ct-fused-targets", c, ct(dict(group_0=group(F8W("channel"), ["re:.*qkv_proj", "re:.*o_proj"], format="float-quantized"), group_1=group(CW(), ["re:.*gate_up_proj", "re:.*down_proj"], format="pack-quantized")), "mixed-precision"),
        *model(c, lambda P: fp8("row", "BF16") if attn(P) else ct_int()))
    add("gptq-fused-dynamic", c, QG(dynamic={r".*gate_up_proj": {"bits": 8}, r"-:.*qkv_proj": {}}), *model(c, lambda P: gptq(32, 8 if last(P) in ("gate_proj", "up_proj") else 4), only=lambda P: last(P) not in ("q_proj", "k_proj", "v_proj")))
    # heads and embeddings of their own kinds, tied and not (sglang#38143)
    for k in (c, config(tie_word_embeddings=False)):
        how = "tied" if k["tie_word_embeddings"] else "untied"
        add(f"awq-head-{how}", k, QA(lm_head=True), *model(k, awq(32), head=awq(32)))
        add(f"fp8-block-head-{how}", k, dict(F8, weight_block_size=[32, 32]), *model(k, fp8("block", block=32), head=fp8("block", block=32)))
        add(f"ct-head-of-other-bits-{how}", k, ct(dict(group_0=group(CW(), ["re:.*layers.*"]), group_1=group(CW(8, None), ["lm_head"])), "pack-quantized", ignore=[]), *model(k, ct_int(), head=ct_int(8, None)))
        add(f"gptq-head-of-other-bits-{how}", k, QG(lm_head=True, dynamic={"lm_head": {"bits": 8}}), *model(k, gptq(32), head=gptq(32, 8)))
        add(f"ct-embedding-group-{how}", k, ct(dict(group_0=group(CW()), group_1=group(CW(8, None), ["Embedding"])), "pack-quantized"), *model(k, ct_int(), embed=ct_int(8, None)))
        add(f"ct-embedding-alone-{how}", k, ct(dict(group_0=group(CW(), ["Embedding"])), "pack-quantized"), *model(k, ct_int(), only=lambda P: False, embed=ct_int()))
    # W4A8: four bits in bytes; two MX widths (llm-compressor#2730); a global scale in the model's own dtype
    def bytes4(n, k): q = rng.integers(-8, 8, (n, k)); s = bf16_value(rng.random((n, k // 32)) * .02 + .001); return dict(weight=q.astype(I8), weight_scale=bf16(s)), (q.astype(F32) * np.repeat(s, 32, 1)).astype(F32)
    for fmt in ("int-quantized", "naive-quantized"): add(f"ct-w4-{fmt}", c, ct(dict(group_0=group(CW())), fmt), *model(c, bytes4))
    MX = dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32, scale_dtype="torch.uint8", dynamic=False)
    def mxfp8(n, k): q = codes8(n, k); b = rng.integers(115, 127, (n, k // 32)).astype(U8); return dict(weight=Raw("F8_E4M3", q), weight_scale=b), (E4M3[q] * np.repeat((b.astype(np.uint32) << 23).view(F32), 32, 1)).astype(F32)
    add("ct-mxfp4-and-8", c, ct(dict(group_0=group(MX, ["re:.*mlp.*"], format="mxfp4-pack-quantized"), group_1=group(dict(MX, num_bits=8), ["re:.*attn.*"], format="mxfp8-quantized")), "mixed-precision", version="0.19.0"), *model(c, lambda P: mxfp8 if attn(P) else mxfp4()))
    T, W = model(c, nvfp4()); add("ct-nvfp4-bf16-global", c, ct(dict(group_0=group(dict(MX, strategy="tensor_group", group_size=16))), "nvfp4-pack-quantized"), {k: bf16(t) if k.endswith("global_scale") else t for k, t in T.items()}, W)
    # the text model of a wrapper, under another name of its config (vllm#13343)
    T, W = model(c, awq(32)); add("awq-in-llm_config", dict(architectures=["InternVLChatModel"], llm_config=dict(c, quantization_config=QA())), None, {"language_model." + k: t for k, t in T.items()}, W)
    # stored together
    T, W = model(c, None, only=lambda P: False)
    add("plain-fused-gate-up", c, None, fuse(T, "mlp", ("gate_proj", "up_proj"), "gate_up_proj"), W)
    add("plain-fused-qkv", c, None, fuse(T, "self_attn", ("q_proj", "k_proj", "v_proj"), "qkv_proj"), W)
    T, W = model(c, fp8("row")); add("fp8-fused-both", c, dict(quant_method="fp8", activation_scheme="dynamic"), fuse(fuse(T, "mlp", ("gate_proj", "up_proj"), "gate_up_proj"), "self_attn", ("q_proj", "k_proj", "v_proj"), "qkv_proj"), W)
    T, W = model(c, ct_int()); T = fuse(T, "mlp", ("gate_proj", "up_proj"), "gate_up_proj"); T["model.layers.0.mlp.gate_up_proj.weight_shape"] = np.array([2 * I, H], I64)
    add("ct-fused-gate-up", c, ct(dict(group_0=group(CW())), "pack-quantized"), T, W)
    T, W = model(c, gptq(32)); add("gptq-fused-gate-up", c, QG(), fuse(T, "mlp", ("gate_proj", "up_proj"), "gate_up_proj", axis=1), W)
    T, W = model(c, awq(32)); add("awq-fused-qkv", c, QA(), fuse(T, "self_attn", ("q_proj", "k_proj", "v_proj"), "qkv_proj", axis=1), W)
    T, W = model(config(vocab_size=V + 16, tie_word_embeddings=False), fp8("row"), head=fp8("row"), embed=fp8("row")); k = config(tie_word_embeddings=False)
    W = {P: w[:V] if P in ("lm_head", "model.embed_tokens") else w for P, w in W.items()}; add("fp8-padded-vocabulary", k, dict(quant_method="fp8", activation_scheme="dynamic"), T, W, warn="W206")


# ---- GGUF: files as other writers may lay them out ----

GG = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_matrix(n, k, kind):
    """(type id, bytes, float32 values) of a random matrix."""
    if kind == "F32": w = rng.normal(size=(n, k)).astype(F32); return 0, w.tobytes(), w
    if kind == "F16": w = rng.normal(size=(n, k)).astype(F16); return 1, w.tobytes(), w.astype(F32)
    if kind == "BF16": b = bf16_bits(rng.normal(size=(n, k))); return 30, b.tobytes(), (b.astype(np.uint32) << 16).view(F32)
    d = (rng.random((n, k // 32, 1)) * .02 + .001).astype(F16)
    if kind == "Q8_0": q = rng.integers(-127, 128, (n, k // 32, 32)); return 8, b"".join(d[i, j].tobytes() + q[i, j].astype(I8).tobytes() for i in range(n) for j in range(k // 32)), (d.astype(F32) * q.astype(F32)).reshape(n, k)
    q = rng.integers(0, 16, (n, k // 32, 32)); packed = (q[..., :16] | q[..., 16:] << 4).astype(U8)
    return 2, b"".join(d[i, j].tobytes() + packed[i, j].tobytes() for i in range(n) for j in range(k // 32)), (d.astype(F32) * (q - 8).astype(F32)).reshape(n, k)


def gguf_model(arch="llama", kinds=("Q4_0", "Q8_0", "F16"), tied=True, tokenizer=False, version=3, align=32, extra=(), order=1, norms="F32", freqs=False, split=0, types=None):
    """({file name: bytes}, expected matrices)."""
    c = config(); W, T = {}, []
    if arch == "qwen2": c = config("Qwen2")
    heads, kv, hd = c["num_attention_heads"], c["num_key_value_heads"], c.get("head_dim", H // c["num_attention_heads"])
    def vector(name, n): v = np.ones(n, F32) + rng.normal(size=n).astype(F32) * .01; T.append((name, [n], 1 if norms == "F16" else 0, (v.astype(F16) if norms == "F16" else v).tobytes()))
    def matrix(name, P, n, k, kind, permute=0):
        t, b, w = gguf_matrix(n, k, kind); T.append((name, [k, n], t, b))
        if permute: w = w.reshape(permute, n // permute // 2, 2, k).swapaxes(1, 2).reshape(n, k)  # file row h*hd + 2i + s is row h*hd + s*hd/2 + i
        W[P] = np.ascontiguousarray(w)
    matrix("token_embd.weight", "model.embed_tokens", V, H, kinds[-1]); vector("output_norm.weight", H)
    if not tied: matrix("output.weight", "lm_head", V, H, kinds[0])
    for s in ("attn_norm", "ffn_norm"): vector(f"blk.0.{s}.weight", H)
    for i, (P, (n, k)) in enumerate(linears(c).items()):
        g = GG[P.removeprefix("model.layers.0.")]; matrix(f"blk.0.{g}.weight", P, n, k, kinds[i % len(kinds)], (heads if g == "attn_q" else kv) if arch == "llama" and g in ("attn_q", "attn_k") else 0)
        if arch == "qwen2" and g in ("attn_q", "attn_k", "attn_v"): T.append((f"blk.0.{g}.bias", [n], 0, rng.normal(size=n).astype(F32).tobytes()))
    if freqs: T.append(("rope_freqs.weight", [hd // 2], 0, np.linspace(1, 8, hd // 2).astype(F32).tobytes()))
    T += list(extra)
    if types: T = [(n, d, types.get(n, t), b) for n, d, t, b in T]
    T = T[::order]
    s = lambda x: struct.pack("<Q", len(x)) + x.encode()
    u32, f32, text = (lambda k, v: s(k) + struct.pack("<II", 4, v)), (lambda k, v: s(k) + struct.pack("<If", 6, v)), (lambda k, v: s(k) + struct.pack("<I", 8) + s(v))
    a = arch; pairs = [text("general.architecture", a), u32("general.alignment", align), u32(f"{a}.block_count", 1), u32(f"{a}.context_length", 256), u32(f"{a}.embedding_length", H), u32(f"{a}.feed_forward_length", I), u32(f"{a}.attention.head_count", heads),
                       u32(f"{a}.attention.head_count_kv", kv), f32(f"{a}.attention.layer_norm_rms_epsilon", 1e-5), f32(f"{a}.rope.freq_base", 1e4), u32(f"{a}.vocab_size", V), u32(f"{a}.rope.dimension_count", hd)]
    if arch != "qwen2": pairs += [u32(f"{a}.attention.key_length", hd), u32(f"{a}.attention.value_length", hd)]
    def file(pairs, T):
        infos, data = b"", b""
        for n, d, t, b in T: infos += s(n) + struct.pack(f"<I{len(d)}q", len(d), *d) + struct.pack("<iQ", t, len(data)); data += b + b"\0" * (-len(b) % align)
        head = b"GGUF" + struct.pack("<Iqq", version, len(T), len(pairs)) + b"".join(pairs) + infos
        return head + b"\0" * (-len(head) % align) + data
    if not split: return {"m.gguf": file(pairs, T)}, W
    u16 = lambda k, v: s(k) + struct.pack("<IH", 2, v); cut = [T[:len(T) // 2], T[len(T) // 2:]]
    return {f"m-0000{i + 1}-of-00002.gguf": file((pairs if i == 0 else []) + ([text("general.architecture", a)] if i else []) + ([u32("general.alignment", align)] if i else []) + [u16("split.no", i), u16("split.count", 2), s("split.tensors.count") + struct.pack("<Ii", 5, len(T))], cut[i]) for i in (0, 1)}, W


def gguf_variants():
    yield "gguf-plain", *gguf_model(), None
    for version in (2, 3): yield f"gguf-v{version}-reversed", *gguf_model(version=version, order=-1), None
    yield "gguf-align-64", *gguf_model(align=64), None
    yield "gguf-untied", *gguf_model(tied=False), None
    yield "gguf-qwen2", *gguf_model("qwen2", kinds=("Q8_0", "BF16")), None
    yield "gguf-f32", *gguf_model(kinds=("F32",)), None
    yield "gguf-f16-norms", *gguf_model(norms="F16"), None
    yield "gguf-extra-tensor", *gguf_model(extra=[("blk.0.something_new.weight", [32], 0, b"\0" * 128)]), "W203"
    yield "gguf-split", *gguf_model(split=2), None
    f, W = gguf_model(); yield "gguf-version-1", gguf_model(version=1)[0], r"E207.*version", None
    yield "gguf-big-endian", gguf_model(version=3 << 24)[0], r"E207.*endian", None
    for t, name in ((16, "IQ2_XXS"), (19, "IQ1_S"), (39, "MXFP4"), (99, "99"), (4, "4")): yield f"gguf-type-{name}", gguf_model(types={"blk.0.ffn_gate.weight": t})[0], rf"E[23]\d\d.*({name}|ffn_gate)", None


def fuse(T, where, parts, name, axis=0):
    L, out = "model.layers.0." + where + ".", dict(T)
    for k in [k for k in T if k.startswith(L + parts[0] + ".")]:
        s = k.rsplit(".", 1)[-1] if not k.startswith(L + parts[0] + ".weight.") else k[len(L + parts[0]) + 1:]
        ts = [out.pop(L + p + "." + s) for p in parts]; raw = isinstance(ts[0], Raw)
        a = [t.a if raw else t for t in ts]
        joined = a[0] if s in ("g_idx", "weight_shape") else np.concatenate(a, axis if a[0].ndim > 1 else 0)
        out[L + name + "." + s] = Raw(ts[0].dtype, joined) if raw else joined
    return out


def holds(name, r, out, W, warn):
    if isinstance(W, str):
        if r.returncode in (3, 4) and re.search(W, r.stderr, re.S): return True
        print(f"{name}: exit {r.returncode}, should be refused with {W}: {r.stderr[:200]}"); return False
    if r.returncode: print(f"{name}: exit {r.returncode}: " + r.stderr.strip()[:400].replace("\n", " | ")); return False
    if warn and warn not in r.stderr: print(f"{name}: no {warn}: {r.stderr[:200]}"); return False
    got, off = read(out / "model.safetensors"), []
    for P, w in W.items():
        g = got.get(P + ".weight")
        if g is None: off.append(P + " is absent")
        elif not np.array_equal(g, w): off.append(f"{P} differs by {np.abs(g - w).max():.3g}" if g.shape == w.shape else f"{P} is {g.shape}")
    if off: print(f"{name}: {'; '.join(off[:3])} ({len(off)} matrices)")
    return not off


def main(program, pattern=""):
    build(); bad = ran = 0
    for name, c, T, W, files, flags, warn in VARIANTS:
        if not re.search(pattern, name): continue
        ran += 1
        with tempfile.TemporaryDirectory() as d:
            d = pathlib.Path(d); m = d / "m"; m.mkdir()
            (m / "config.json").write_text(json.dumps(c)); (m / "model.safetensors").write_bytes(safetensors(T))
            for f, text in files.items(): (m / f).write_text(text)
            r = subprocess.run([program, "export", m, "--output", d / "x", "--dtype", "f32", "--device", "cpu", *flags], capture_output=True, text=True)
            bad += not holds(name, r, d / "x", W, warn)
    for name, files, W, warn in gguf_variants():
        if not re.search(pattern, name): continue
        ran += 1
        with tempfile.TemporaryDirectory() as d:
            d = pathlib.Path(d)
            for f, b in files.items(): (d / f).write_bytes(b)
            r = subprocess.run([program, "export", d / next(iter(files)), "--output", d / "x", "--dtype", "f32", "--device", "cpu"], capture_output=True, text=True)
            bad += not holds(name, r, d / "x", W, warn)
    print(f"{ran - bad} of {ran} hold"); return bad > 0


if __name__ == "__main__": sys.exit(main(*sys.argv[1:]))
