"""Random blocks of every type with their values, from the reference Python package of ggml.

usage: python3 make_blocks.py blocks.bin       needs: gguf 0.19.0 (PyPI), numpy; seed 1
Layout of the file: for each type u32 type id, u32 blocks, u32 bytes a block, u32 values a block, the blocks, the
values as float32. Scales are random halves, subnormal ones, zeros and negative ones among them.
"""
import struct, sys
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

HALVES = dict(Q4_0=[0], Q4_1=[0, 2], Q5_0=[0], Q5_1=[0, 2], Q8_0=[0], IQ4_NL=[0], Q2_K=[80, 82], Q3_K=[108], Q4_K=[0, 2],
              Q5_K=[0, 2], Q6_K=[208], IQ4_XS=[0], MXFP4=[])   # byte offsets of the half-precision numbers
rng = np.random.default_rng(1)
with open(sys.argv[1], "wb") as out:
    for name, offsets in HALVES.items():
        values, size = GGML_QUANT_SIZES[Type[name]]
        count = 24 if values == 32 else 4
        blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
        for o in offsets:
            h = rng.standard_normal(count).astype(np.float16)
            h[:4] = np.array([-0.0, 6e-8, -65504, 1e-5], np.float16)
            blocks[:, o:o + 2] = h.view(np.uint8).reshape(-1, 2)
        if name == "MXFP4": blocks[:, 0] = np.r_[0, 1, 2, 252, rng.integers(100, 140, count - 4)]
        out.write(struct.pack("<4I", int(Type[name]), count, size, values))
        out.write(blocks.tobytes())
        out.write(dequantize(blocks, Type[name]).astype("<f4").tobytes())
