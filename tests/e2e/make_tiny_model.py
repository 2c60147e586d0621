#!/usr/bin/env python3
"""Writes a tiny Llama with random weights as a Hugging Face directory, which the end-to-end tests serve.

usage: make_tiny_model.py FOLDER

It has two layers, hidden size 64, four heads on two KV heads, a byte-level BPE tokenizer and a ChatML
template. Its weights are float32, or bfloat16 with heads of 64, or the latter with e4m3 in the matrices of
the layers. The context is long, so that a request can last as long as a test needs. Its text means nothing,
but is the same on every machine.
"""

import json
import pathlib
import random
import struct
import sys

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN = 64, 2, 4, 2, 128
HEAD_DIMS = {"float32": HIDDEN // HEADS, "bfloat16": 64, "float8": 64}
CONTEXT = 32768
MERGES = ["t h", "h e", "i n", "e r", "a n", "Ġ t", "Ġt he", "Ġ a", "o n", "o u", "l l", "Ġ w", "in g"]
BOS, EOS, IM_START, IM_END = "<s>", "</s>", "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}{% if message['role'] == 'tool' %}{{ raise_exception('No tools here') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_letters() -> list[str]:
    """GPT-2's printable character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {byte: chr(byte) for byte in plain}, 0
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + extra)
            extra += 1
    return [letters[byte] for byte in range(256)]


def tokenizer() -> dict:
    pieces = byte_letters() + [merge.replace(" ", "") for merge in MERGES]
    special = [BOS, EOS, IM_START, IM_END]
    vocabulary = {piece: id for id, piece in enumerate(pieces + special)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[piece], "content": piece, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
            for piece in special
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": BOS, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {BOS: {"id": BOS, "ids": [vocabulary[BOS]], "tokens": [BOS]}},
        },
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": vocabulary, "merges": MERGES},
    }


def falcon_tensors(vocab_size: int):
    """As tensors()."""
    hidden = HIDDEN**-0.5
    yield "transformer.word_embeddings.weight", (vocab_size, HIDDEN), hidden
    for layer in range(LAYERS):
        prefix = f"transformer.h.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield prefix + norm + ".weight", (HIDDEN,), None
            yield prefix + norm + ".bias", (HIDDEN,), 0.0
        yield prefix + "self_attention.query_key_value.weight", (3 * HIDDEN, HIDDEN), hidden
        yield prefix + "self_attention.dense.weight", (HIDDEN, HIDDEN), hidden
        yield prefix + "mlp.dense_h_to_4h.weight", (4 * HIDDEN, HIDDEN), hidden
        yield prefix + "mlp.dense_4h_to_h.weight", (HIDDEN, 4 * HIDDEN), (4 * HIDDEN)**-0.5
    yield "transformer.ln_f.weight", (HIDDEN,), None
    yield "transformer.ln_f.bias", (HIDDEN,), 0.0


def tensors(vocab_size: int, head_dim: int, num_experts: int = 0):
    """(name, shape, deviation): an input of unit variance gives an output of unit variance."""
    hidden = HIDDEN**-0.5
    queries, keys = HEADS * head_dim, KV_HEADS * head_dim
    yield "model.embed_tokens.weight", (vocab_size, HIDDEN), 1.0
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (HIDDEN,), None
        yield prefix + "self_attn.q_proj.weight", (queries, HIDDEN), hidden
        yield prefix + "self_attn.k_proj.weight", (keys, HIDDEN), hidden
        yield prefix + "self_attn.v_proj.weight", (keys, HIDDEN), hidden
        yield prefix + "self_attn.o_proj.weight", (HIDDEN, queries), queries**-0.5
        yield prefix + "post_attention_layernorm.weight", (HIDDEN,), None
        if not num_experts:
            yield prefix + "mlp.gate_proj.weight", (FFN, HIDDEN), hidden
            yield prefix + "mlp.up_proj.weight", (FFN, HIDDEN), hidden
            yield prefix + "mlp.down_proj.weight", (HIDDEN, FFN), FFN**-0.5
            continue
        yield prefix + "block_sparse_moe.gate.weight", (num_experts, HIDDEN), hidden
        for expert in range(num_experts):
            yield prefix + f"block_sparse_moe.experts.{expert}.w1.weight", (FFN, HIDDEN), hidden
            yield prefix + f"block_sparse_moe.experts.{expert}.w2.weight", (HIDDEN, FFN), FFN**-0.5
            yield prefix + f"block_sparse_moe.experts.{expert}.w3.weight", (FFN, HIDDEN), hidden
    yield "model.norm.weight", (HIDDEN,), None
    yield "lm_head.weight", (vocab_size, HIDDEN), 2 * hidden


def packed(values: list[float], dtype: str) -> bytes:
    data = struct.pack(f"<{len(values)}f", *values)
    if dtype == "float32":
        return data
    # The upper halves, rounded to the nearest, ties to even.
    bits = struct.unpack(f"<{len(values)}I", data)
    return struct.pack(f"<{len(values)}H", *((b + 0x7fff + (b >> 16 & 1)) >> 16 for b in bits))


def safetensors(all_tensors, dtype: str) -> bytes:
    generator = random.Random(1)
    header, data = {}, bytearray()

    def add(name: str, kind: str, shape: tuple, content: bytes):
        begin = len(data)
        data.extend(content)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, len(data)]}

    for name, shape, deviation in all_tensors:
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        if dtype == "float8" and "layers" in name and len(shape) == 2:
            # Numbers of codes below 0x7f, which is NaN, have a root mean square of 100.
            codes = bytes(generator.randrange(127) | generator.choice((0, 128)) for _ in range(count))
            add(name, "F8_E4M3", shape, codes)
            add(name + "_scale", "F32", (1,), struct.pack("<f", deviation / 100))
            continue
        values = [1.0] * count if deviation is None else [generator.gauss(0, deviation) for _ in range(count)]
        add(name, "F32" if dtype == "float32" else "BF16", shape, packed(values, dtype))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def write_falcon(folder: pathlib.Path) -> None:
    """Writes a Falcon in bfloat16 with the tokenizer of write(). Its one head has 64 elements and a rounded ALiBi bias."""
    write(folder)
    config = json.loads((folder / "config.json").read_text())
    falcon = {"architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": HIDDEN,
              "num_hidden_layers": LAYERS, "num_attention_heads": 1, "layer_norm_epsilon": 1e-5, "bias": False,
              "alibi": True, "multi_query": False, "parallel_attn": False, "new_decoder_architecture": False,
              "torch_dtype": "bfloat16"}
    falcon |= {key: config[key] for key in ("vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id")}
    (folder / "config.json").write_text(json.dumps(falcon))
    (folder / "model.safetensors").write_bytes(safetensors(falcon_tensors(falcon["vocab_size"]), "bfloat16"))


def write_mistral(folder: pathlib.Path, dtype: str = "float32") -> None:
    """As write(), with a window of 64 tokens in each layer."""
    write(folder, dtype)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64}))


def write_mixtral(folder: pathlib.Path) -> None:
    """As write(), with a mixture of four experts in each layer, of which a token takes two."""
    write(folder)
    config = folder / "config.json"
    fields = json.loads(config.read_text()) | {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": None}
    config.write_text(json.dumps(fields))
    (folder / "model.safetensors").write_bytes(
        safetensors(tensors(fields["vocab_size"], fields["head_dim"], num_experts=4), "float32"))


def write(folder: pathlib.Path, dtype: str = "float32") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokens = tokenizer()
    ids = tokens["model"]["vocab"]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIMS[dtype],
        "vocab_size": len(ids), "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, "torch_dtype": "float32" if dtype == "float32" else "bfloat16",
        "bos_token_id": ids[BOS], "eos_token_id": ids[EOS],
    }
    if dtype == "float8":
        config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS,
                        "add_bos_token": True, "add_eos_token": False, "chat_template": CHATML}
    for name, value in [("config.json", config), ("tokenizer.json", tokens),
                        ("tokenizer_config.json", tokenizer_config),
                        ("generation_config.json", {"bos_token_id": ids[BOS],
                                                    "eos_token_id": [ids[EOS], ids[IM_END]]})]:
        (folder / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(tensors(len(ids), HEAD_DIMS[dtype]), dtype))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(pathlib.Path(sys.argv[1]))
