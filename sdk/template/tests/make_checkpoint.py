"""make_checkpoint.py FOLDER: a two-layer model of random weights in the format @NAME@. Needs nothing but Python."""
import json, os, random, struct, sys

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, LAYERS, VOCAB, GROUP = 128, 256, 4, 2, 32, 2, 256, 32


def f16(values):
    return b"".join(struct.pack("<e", v) for v in values)


def quantized(rows, columns):
    """{suffix: (dtype, shape, bytes)} of one matrix W[rows, columns]."""
    q, scales = bytearray(), []
    for _ in range(rows):
        w = [random.gauss(0, 0.05) for _ in range(columns)]
        codes = []
        for g in range(0, columns, GROUP):
            scale = max(abs(x) for x in w[g:g + GROUP]) / 7
            scales.append(scale)
            codes += [min(15, max(0, round(x / scale) + 8)) for x in w[g:g + GROUP]]
        q += bytes(codes[k] | codes[k + 1] << 4 for k in range(0, columns, 2))
    return {"q": ("U8", [rows, columns // 2], bytes(q)), "scales": ("F16", [rows, columns // GROUP], f16(scales))}


def plain(*shape, value=None):
    n = 1
    for d in shape:
        n *= d
    return "F16", list(shape), f16([random.gauss(0, 0.5) if value is None else value for _ in range(n)])


def main(folder):
    random.seed(1)
    tensors = {"model.embed_tokens.weight": plain(VOCAB, HIDDEN), "lm_head.weight": plain(VOCAB, HIDDEN), "model.norm.weight": plain(HIDDEN, value=1.0)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[layer + norm + ".weight"] = plain(HIDDEN, value=1.0)
        for name, rows, columns in (("self_attn.q_proj", HEADS * HEAD, HIDDEN), ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN), ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN),
                                    ("self_attn.o_proj", HIDDEN, HEADS * HEAD), ("mlp.gate_proj", INNER, HIDDEN), ("mlp.up_proj", INNER, HIDDEN), ("mlp.down_proj", HIDDEN, INNER)):
            for suffix, tensor in quantized(rows, columns).items():
                tensors[layer + name + "." + suffix] = tensor
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    os.makedirs(folder, exist_ok=True)
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCAB, "max_position_embeddings": 256,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float16",
              "bos_token_id": 1, "eos_token_id": 2, "quantization_config": {"quant_method": "@NAME@", "group_size": GROUP}}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)


main(sys.argv[1])
