"""make_checkpoint.py MODEL OUT: a small unquantized checkpoint, in HQQ's 4-bit format, with golden rows beside it. Needs nothing but Python.

Codes, scales and zeros are those of HQQ's first guess (the range of each group); its optimizer moves the zeros afterwards, the
format is the same. golden.safetensors holds rows of (code - zero) * scale, computed here in float32, apart from the plugin.
"""
import json, os, shutil, struct, sys

GROUP = 64
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def read(path):
    with open(path, "rb") as f:
        raw = f.read()
    size, = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + size])
    return {name: (t["dtype"], t["shape"], raw[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for name, t in header.items() if name != "__metadata__"}


def floats(dtype, raw):
    if dtype == "F32":
        return struct.unpack(f"<{len(raw) // 4}f", raw)
    if dtype == "F16":
        return struct.unpack(f"<{len(raw) // 2}e", raw)
    assert dtype == "BF16", dtype
    return [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]


def write(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def quantize(w):
    codes, scales, zeros = [], [], []
    for i in range(0, len(w), GROUP):
        group = w[i:i + GROUP]
        low, high = min(group), max(group)
        scale = f16((high - low) / 15) or f16(1e-4)
        zero = f16(-low / scale)
        scales.append(scale)
        zeros.append(zero)
        codes += [min(15, max(0, round(x / scale + zero))) for x in group]
    return codes, scales, zeros


def main(source, out):
    os.makedirs(out, exist_ok=True)
    tensors, golden, rows_of = {}, {}, {}
    for name, (dtype, shape, raw) in read(os.path.join(source, "model.safetensors")).items():
        module = name.rsplit(".", 1)[0]
        if not name.endswith(".weight") or module.rsplit(".", 1)[-1] not in MODULES:
            tensors[name] = (dtype, shape, raw)
            continue
        n, k = shape
        codes, scales, zeros = quantize(floats(dtype, raw))
        groups, half = n * k // GROUP, n * k // 2
        packed = bytes(codes[i] << 4 | codes[i + half] for i in range(half))  # high nibble: the first half of the rows
        tensors[module + ".W_q"] = ("U8", [groups // 2, GROUP], packed)
        tensors[module + ".scale"] = ("F16", [groups, 1], struct.pack(f"<{groups}e", *scales))
        tensors[module + ".zero"] = ("F16", [groups, 1], struct.pack(f"<{groups}e", *zeros))
        tensors[module + ".nbits"] = ("I64", [1], struct.pack("<q", 4))
        tensors[module + ".axis"] = ("I64", [1], struct.pack("<q", 1))
        picked = [0, n // 2 - 1, n // 2, n - 1]
        rows_of[module] = picked
        values = []
        for r in picked:
            for i in range(r * k, (r + 1) * k):
                # halves: the difference and the product are exact in double, one rounding to float32 is left
                values.append(f32((codes[i] - zeros[i // GROUP]) * scales[i // GROUP]))
        golden["rows." + module] = ("F32", [len(picked), k], struct.pack(f"<{len(values)}f", *values))
    write(os.path.join(out, "model.safetensors"), tensors)
    write(os.path.join(out, "golden.safetensors"), golden)
    with open(os.path.join(out, "golden.json"), "w") as f:
        json.dump({"dequant_rows": rows_of}, f)
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
    config["quantization_config"] = {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": GROUP, "axis": 1, "channel_wise": True}},
                                     "skip_modules": ["lm_head"]}
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    for extra in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if os.path.exists(os.path.join(source, extra)):
            shutil.copy(os.path.join(source, extra), out)


main(sys.argv[1], sys.argv[2])
