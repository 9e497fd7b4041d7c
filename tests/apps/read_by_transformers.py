"""What transformers and compressed-tensors make of the folders that `qengine export` and `qengine requantize` write.

usage: read_by_transformers.py QENGINE      exit 77 (skipped) where a package or the fixtures are missing
Logits of one prompt in float32: the other engine's against `eval logits --exact`, with activations left alone and as the folder asks.
Read with torch 2.14.0, transformers 5.17.0, compressed-tensors 0.19.0: largest difference 1.3e-5, which is float32 rounding. With
quantized activations a value at the border of two codes may fall to either side and move all logits behind it: there the median
counts, against how far the activations move it.
INT8 activations are left out: compressed-tensors divides by amax/127.5, we by amax/127 (0.4 % apart), which gives other codes.
"""
import json, os, pathlib, struct, subprocess, sys, tempfile

try:
    import numpy as np, torch, transformers, compressed_tensors  # noqa: F401
except ImportError as e:
    print(f"skipped: {e}; pip install torch transformers compressed-tensors numpy"); sys.exit(77)
qengine = sys.argv[1]
project = pathlib.Path(__file__).resolve().parents[2]
places = [pathlib.Path(os.environ["QENGINE_FIXTURES"])] if "QENGINE_FIXTURES" in os.environ else []
fixtures = next((p for p in (*places, project.parent / "shared/fixtures", project / "tests/golden") if (p / "tiny-qwen3").is_dir()), None)
if fixtures is None: print("skipped: no fixtures"); sys.exit(77)
IDS = list(range(3, 60))


def run(*args):
    r = subprocess.run([qengine, *map(str, args)], capture_output=True, text=True)
    if r.returncode: raise SystemExit(f"qengine {' '.join(map(str, args))}: exit {r.returncode}: {r.stderr}")


def ours(folder, scratch, *flags):
    run("eval", "logits", folder, "--output", scratch / "l.safetensors", "--exact", "--kv-cache-dtype", "float32", "--prompt-ids", ",".join(map(str, IDS)), *flags)
    raw = (scratch / "l.safetensors").read_bytes(); n = struct.unpack("<Q", raw[:8])[0]; a, b = json.loads(raw[8:8 + n])["logits_0"]["data_offsets"]
    return np.frombuffer(raw[8 + n + a:8 + n + b], np.float32).reshape(len(IDS), -1)


def theirs(folder, dequantize=False):
    config = transformers.AutoConfig.from_pretrained(folder)
    if dequantize: config.quantization_config["config_groups"]["group_0"]["input_activations"] = None
    m = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    with torch.no_grad(): return m(torch.tensor([IDS])).logits[0].float().numpy()


def main():
    torch.set_num_threads(2); bad = 0
    sources = [(f"requantize {s} of tiny-qwen3", fixtures / "tiny-qwen3", ["requantize", "--scheme", s]) for s in ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "int8", "int4")]
    sources += [("export f32 of tiny-qwen2", fixtures / "tiny-qwen2", ["export", "--dtype", "f32"]), ("export bf16 of tiny-qwen3", fixtures / "tiny-qwen3", ["export"])]
    gguf = sorted((fixtures / "gguf").glob("tiny-llama*.gguf"))
    if gguf: sources += [(f"export f32 of {gguf[0].name}", gguf[0], ["export", "--dtype", "f32"]), (f"requantize fp8_per_channel of {gguf[0].name}", gguf[0], ["requantize", "--scheme", "fp8_per_channel"])]
    for name, source, command in sources:
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch); run(command[0], source, *command[1:], "--output", scratch / "out")
            a, b = theirs(scratch / "out", command[0] == "requantize"), ours(scratch / "out", scratch, "--activation-quant", "off")
            off = float(np.abs(a - b).max()); short = not off < 2e-4
            line = f"{name}: largest difference {off:.2g}"
            if command[0] == "requantize" and "int8" not in command:
                plain, a, b = a, theirs(scratch / "out"), ours(scratch / "out", scratch, "--activation-quant", "checkpoint")
                moved, off = float(np.median(np.abs(a - plain))), float(np.median(np.abs(a - b))); short |= not off <= max(1e-4, moved / 5)
                line += f"; with its activations {np.abs(a - b).max():.2g}, median {off:.2g} where they move it by {moved:.2g}"
            bad += short
            print(line + (" !" if short else ""), flush=True)
    return 1 if bad else 0


if __name__ == "__main__": sys.exit(main())
