#!/usr/bin/env python3
"""Writes testdata/quantised_rows.gguf: weights quantised by llama.cpp itself, and what they mean as floats by
PyPI gguf. For every type T a tensor T of two rows of 512, and T.f32 with the same rows dequantised.

    python3 make_quantised_goldens.py        needs gguf, numpy, xllamacpp
"""

import pathlib
import sys

import gguf
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "testing"))
from llama_cpp_quantizer import dequantize, quantize

TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
COLS = 512


def main():
    writer = gguf.GGUFWriter(pathlib.Path(__file__).parent / "testdata" / "quantised_rows.gguf", "none")
    rng = np.random.default_rng(20240917)
    for type_name in TYPES:
        kind = gguf.GGMLQuantizationType[type_name]
        weights = rng.normal(0, 0.05, (2, COLS)).astype(np.float32)
        weights[1, :64] *= 20  # blocks of very different ranges in one row
        weights[1, 64:96] = 0  # and one of nothing
        if type_name in ("F16", "BF16"):
            raw = gguf.quants.quantize(weights, kind).view(np.uint8)
        else:
            raw = quantize(weights, type_name)
        writer.add_tensor(type_name, raw, raw_dtype=kind)
        writer.add_tensor(type_name + ".f32", dequantize(raw, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
