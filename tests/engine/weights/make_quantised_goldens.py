#!/usr/bin/env python3
"""Quantised weights made by llama.cpp itself, and what they mean as floats by PyPI gguf.

  make_quantised_goldens.py rows FILE    testdata/quantised_rows.gguf: for every type T a tensor T of
                                         two rows of 512, and T.f32 with the same rows dequantised
  make_quantised_goldens.py llama DIR    random-llama-512.TYPE.gguf: a whole Llama (hidden 512, two
                                         layers) per K-quant type, and its dequantised F32 twin

Needs PyPI gguf, numpy and xllamacpp (whose library exports ggml_quantize_chunk).
"""

import ctypes
import glob
import os
import sys

import gguf
import numpy as np

TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
K_TYPES = ["Q4_K", "Q5_K", "Q6_K"]
HIDDEN = 512


def load_quantizer():
    import xllamacpp

    library = glob.glob(os.path.join(os.path.dirname(xllamacpp.__file__), "*.so"))[0]
    function = ctypes.CDLL(library).ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    return function


def quantize(function, weights, type_name):
    """The bytes of `weights` [rows, cols] in llama.cpp's own quantisation."""
    kind = gguf.GGMLQuantizationType[type_name]
    if type_name in ("F16", "BF16"):
        return gguf.quants.quantize(weights, kind).view(np.uint8)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, cols = weights.shape
    source = np.ascontiguousarray(weights, dtype=np.float32)
    out = np.zeros((rows, cols // block * size), dtype=np.uint8)
    written = function(int(kind), source.ctypes.data, out.ctypes.data, 0, rows, cols, None)
    assert written == out.size, (type_name, written, out.size)
    return out


def dequantize(raw, type_name):
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[type_name]).astype(np.float32)


def write(path, architecture, add):
    writer = gguf.GGUFWriter(path, architecture)
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(path, os.path.getsize(path), "bytes")


def make_rows(path):
    function = load_quantizer()
    rng = np.random.default_rng(20240917)

    def add(writer):
        for type_name in TYPES:
            weights = rng.normal(0, 0.05, (2, HIDDEN)).astype(np.float32)
            weights[1, :64] *= 20  # blocks of very different ranges in one row
            weights[1, 64:96] = 0  # and one of nothing
            raw = quantize(function, weights, type_name)
            writer.add_tensor(type_name, raw, raw_dtype=gguf.GGMLQuantizationType[type_name])
            writer.add_tensor(type_name + ".f32", dequantize(raw, type_name))

    write(path, "none", add)


def make_llama(directory):
    function = load_quantizer()
    vocab, layers, heads, kv_heads, mlp = 256, 2, 8, 2, 768
    head_dim = HIDDEN // heads
    rng = np.random.default_rng(7)
    matrices = {"token_embd": (vocab, HIDDEN)}
    for i in range(layers):
        matrices |= {
            f"blk.{i}.attn_q": (HIDDEN, HIDDEN), f"blk.{i}.attn_k": (kv_heads * head_dim, HIDDEN),
            f"blk.{i}.attn_v": (kv_heads * head_dim, HIDDEN), f"blk.{i}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{i}.ffn_gate": (mlp, HIDDEN), f"blk.{i}.ffn_up": (mlp, HIDDEN), f"blk.{i}.ffn_down": (HIDDEN, mlp),
        }
    weights = {name: rng.normal(0, 0.04, shape).astype(np.float32) for name, shape in matrices.items()}
    norms = ["output_norm"] + [f"blk.{i}.{n}_norm" for i in range(layers) for n in ("attn", "ffn")]
    gains = {name: rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32) for name in norms}

    for type_name in K_TYPES:
        packed = {name: quantize(function, matrix, type_name) for name, matrix in weights.items()}
        for as_floats in (False, True):
            def add(writer):
                writer.add_block_count(layers)
                writer.add_embedding_length(HIDDEN)
                writer.add_feed_forward_length(mlp)
                writer.add_head_count(heads)
                writer.add_head_count_kv(kv_heads)
                writer.add_context_length(512)
                writer.add_layer_norm_rms_eps(1e-5)
                writer.add_rope_dimension_count(head_dim)
                writer.add_vocab_size(vocab)
                for name, raw in packed.items():
                    if as_floats:
                        writer.add_tensor(name + ".weight", dequantize(raw, type_name))
                    else:
                        writer.add_tensor(name + ".weight", raw, raw_dtype=gguf.GGMLQuantizationType[type_name])
                for name, gain in gains.items():
                    writer.add_tensor(name + ".weight", gain)

            suffix = ".f32" if as_floats else ""
            write(os.path.join(directory, f"random-llama-512.{type_name.lower()}{suffix}.gguf"), "llama", add)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("rows", "llama"):
        sys.exit(__doc__)
    (make_rows if sys.argv[1] == "rows" else make_llama)(sys.argv[2])
