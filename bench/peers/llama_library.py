"""llama.cpp's C interface, through the library inside the PyPI package xllamacpp: takes tokens and returns logits.

For scripts that compare Quire's numbers with llama.cpp's. Needs numpy too.
"""

import ctypes
import pathlib

import numpy
import xllamacpp


class _Parameters(ctypes.Structure):
    """A llama_*_params, larger than that of any version. The library fills it and reads it, by value on the stack.

    Only the first words of llama_context_params have names: in every version they are n_ctx, n_batch, n_ubatch.
    """

    _fields_ = [("words", ctypes.c_uint32 * 256)]


class _Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)),
                ("embd", ctypes.POINTER(ctypes.c_float)), ("pos", ctypes.POINTER(ctypes.c_int32)),
                ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("logits", ctypes.POINTER(ctypes.c_int8))]


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_silent = _LOG(lambda level, text, data: None)  # kept: the library calls it until the process ends


def _load_library():
    library = ctypes.CDLL(str(next(pathlib.Path(xllamacpp.__file__).parent.glob("*.so"))))
    results = {"llama_model_default_params": _Parameters, "llama_context_default_params": _Parameters,
               "llama_model_load_from_file": ctypes.c_void_p, "llama_init_from_model": ctypes.c_void_p,
               "llama_model_get_vocab": ctypes.c_void_p, "llama_get_memory": ctypes.c_void_p,
               "llama_get_logits_ith": ctypes.POINTER(ctypes.c_float), "llama_batch_init": _Batch,
               "llama_vocab_get_add_bos": ctypes.c_bool, "llama_vocab_is_eog": ctypes.c_bool}
    for name, kind in results.items():
        getattr(library, name).restype = kind
    library.llama_log_set(_silent, None)
    library.llama_backend_init()
    return library


class Llama:
    """One model, one sequence at a time. `context` is in tokens. KV cache in f16, llama.cpp's default."""

    def __init__(self, path, context, threads):
        self._library = _load_library()
        parameters = self._library.llama_model_default_params()
        self._model = ctypes.c_void_p(self._library.llama_model_load_from_file(str(path).encode(), parameters))
        if not self._model:
            raise ValueError(f"llama.cpp does not load {path}")
        parameters = self._library.llama_context_default_params()
        parameters.words[0] = context
        parameters.words[1] = context
        self._context = ctypes.c_void_p(self._library.llama_init_from_model(self._model, parameters))
        if not self._context:
            raise ValueError(f"llama.cpp has no memory for a context of {context}")
        self._library.llama_set_n_threads(self._context, threads, threads)
        self._vocab = ctypes.c_void_p(self._library.llama_model_get_vocab(self._model))
        self._batch = self._library.llama_batch_init(context, 0, 1)
        self._past = 0
        self.vocab_size = self._library.llama_vocab_n_tokens(self._vocab)
        self.bos_id = self._library.llama_vocab_bos(self._vocab)
        self.adds_bos = self._library.llama_vocab_get_add_bos(self._vocab)

    def tokenize(self, text, add_special=True, parse_special=False):
        data = text.encode()
        room = len(data) + 8
        tokens = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(self._vocab, data, len(data), tokens, room,
                                             ctypes.c_bool(add_special), ctypes.c_bool(parse_special))
        return list(tokens[:count])

    def is_end(self, token):
        return self._library.llama_vocab_is_eog(self._vocab, token)

    def forget(self):
        self._library.llama_memory_clear(ctypes.c_void_p(self._library.llama_get_memory(self._context)),
                                         ctypes.c_bool(True))
        self._past = 0

    def logits(self, tokens, first=0):
        """Feeds `tokens` after those fed before. Returns float32 [len(tokens) - first, vocab_size]."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, self._past + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i >= first
        status = self._library.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        self._past += len(tokens)
        rows = [numpy.ctypeslib.as_array(self._library.llama_get_logits_ith(self._context, i), (self.vocab_size,))
                for i in range(first, len(tokens))]
        return numpy.array(rows)


def log_softmax(logits):
    """Log-softmax in float64, over the last axis."""
    logits = logits.astype(numpy.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(-1, keepdims=True))
