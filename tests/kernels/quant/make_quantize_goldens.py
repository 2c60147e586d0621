"""Writes testdata/quantize_goldens.json: the errors of llama.cpp's own quantisers on the weights that
quantize_test.cc makes of the same seeds, and a hash of its Q8_0 bytes.
Run by hand: python3 make_quantize_goldens.py (needs what llama_cpp_quantizer.py needs)"""

import json
import pathlib
import sys

import gguf
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "testing"))
import llama_cpp_quantizer

ROWS, COLS = 64, 256
MASK = 2**64 - 1


def mix(state):
    """Returns SplitMix64's output for a state (Steele, Lea and Flood, OOPSLA 2014)."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def bells(seed):
    """Returns integers with a bell-shaped distribution: sums of four 16-bit numbers."""
    numbers = (mix((seed + i * 0x9E3779B97F4A7C15) & MASK) for i in range(1, ROWS * COLS + 1))
    sums = [sum((n >> shift) & 0xFFFF for shift in (0, 16, 32, 48)) - 2 * 0xFFFF for n in numbers]
    return np.array(sums, dtype=np.float64).reshape(ROWS, COLS)


def fnv(data):
    """Returns the 64-bit FNV-1a hash."""
    value = 0xCBF29CE484222325
    for byte in data.tobytes():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def relative_error(weights, data, name):
    values = llama_cpp_quantizer.dequantize(data, gguf.GGMLQuantizationType[name]).astype(np.float64)
    return float(np.sqrt(((values - weights) ** 2).sum() / (weights.astype(np.float64) ** 2).sum()))


goldens = {}
for kind, seed, power, scale in (("bell", 1, 1, 2.0**-20), ("heavy-tailed", 2, 3, 2.0**-52)):
    weights = (bells(seed) ** power * scale).astype(np.float32)
    data = {name: llama_cpp_quantizer.quantize(weights, name) for name in ("Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q6_K")}
    goldens[kind] = {
        "relative_error": {name: round(relative_error(weights, data[name], name), 7) for name in data},
        "q8_0_fnv1a": f"{fnv(data['Q8_0']):016x}",
    }
path = pathlib.Path(__file__).parent / "testdata" / "quantize_goldens.json"
path.write_text(json.dumps(goldens, indent=1) + "\n")
