"""Writes testdata/dequantize_goldens.json: random blocks of every weight type and the float32
values that PyPI's `gguf` gives for them. Run by hand: python3 make_dequantize_goldens.py"""

import base64
import json
import pathlib

import gguf
import numpy as np

ROWS, COLS = 2, 256
SCALE_OFFSETS = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
                 "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def case(name, rng):
    if name in ("F16", "BF16"):
        values = rng.normal(size=(ROWS, COLS)).astype(np.float32)
        if name == "F16":
            data = values.astype(np.float16).view(np.uint8)
        else:
            data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        data = data.reshape(ROWS, -1)
    else:
        elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        blocks = rng.integers(0, 256, size=(ROWS * COLS // elements, size), dtype=np.uint8)
        for offset in SCALE_OFFSETS[name]:
            scale = (rng.normal(size=len(blocks)) * 0.01).astype(np.float16)
            blocks[:, offset:offset + 2] = scale.view(np.uint8).reshape(-1, 2)
        data = blocks.reshape(ROWS, -1)
    values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).astype(np.float32)
    assert values.shape == (ROWS, COLS)
    encode = lambda array: base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"type": name, "rows": ROWS, "cols": COLS, "bytes": encode(data),
            "values": encode(values)}


rng = np.random.default_rng(20240601)
names = ["F16", "BF16", *SCALE_OFFSETS]
path = pathlib.Path(__file__).parent / "testdata" / "dequantize_goldens.json"
path.write_text(json.dumps({"cases": [case(name, rng) for name in names]}, indent=1) + "\n")
