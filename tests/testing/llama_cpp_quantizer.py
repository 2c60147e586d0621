"""llama.cpp's own quantisation of weights, for scripts that make goldens.

Needs PyPI gguf, numpy and xllamacpp, whose library exports ggml_quantize_chunk.
"""

import ctypes
import pathlib

import gguf
import numpy
import xllamacpp


def quantize(weights, type_name):
    """The bytes of `weights` [rows, cols] in a block type."""
    library = next(pathlib.Path(xllamacpp.__file__).parent.glob("*.so"))
    function = ctypes.CDLL(str(library)).ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    kind = gguf.GGMLQuantizationType[type_name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, cols = weights.shape
    source = numpy.ascontiguousarray(weights, dtype=numpy.float32)
    out = numpy.zeros((rows, cols // block * size), dtype=numpy.uint8)
    written = function(int(kind), source.ctypes.data, out.ctypes.data, 0, rows, cols, None)
    assert written == out.size, (type_name, written, out.size)
    return out


def dequantize(data, kind):
    """The float32 values that PyPI's gguf reads in `data`. `kind` is a gguf.GGMLQuantizationType."""
    return gguf.quants.dequantize(data, kind).astype(numpy.float32)
