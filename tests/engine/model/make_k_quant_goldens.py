#!/usr/bin/env python3
"""Writes testdata/llama_q*_k_m.gguf and testdata/k_quant_goldens.json: a random Llama in the K-quants of
llama.cpp, and the logits of a float run on what PyPI gguf reads in those files.

    python3 make_k_quant_goldens.py        needs torch, transformers, gguf, numpy, xllamacpp

The weights are quantised by llama.cpp's own code (tests/testing/llama_cpp_quantizer.py),
each tensor in the type that llama-quantize gives it in a Q4_K_M or Q5_K_M file. The logits come from
transformers in float64 over the dequantised weights.

`bound` is how far a run may be from them that rounds the input of each product to int8, with one scale per
block of 32: no value moves by more than half a step, largest of its block / 254. As in make_goldens.py, the
float64 run is repeated with every such value moved by a random part of that, and the largest change of any
logit over 24 runs is doubled; the bounds of float32 arithmetic and angles, which are a hundred times
smaller, are added.
"""

import base64
import importlib.metadata
import json
import pathlib
import sys

import gguf
import numpy
import torch
import transformers

import make_goldens

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "testing"))
from llama_cpp_quantizer import dequantize, quantize

CONFIG = dict(vocab_size=32, hidden_size=512, intermediate_size=256, num_hidden_layers=1,
              num_attention_heads=8, num_key_value_heads=1, head_dim=32, max_position_embeddings=128,
              rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False)
NAMES = {  # of GGUF, by those of transformers
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.layers.0.input_layernorm": "blk.0.attn_norm",
    "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
    "model.layers.0.self_attn.q_proj": "blk.0.attn_q", "model.layers.0.self_attn.k_proj": "blk.0.attn_k",
    "model.layers.0.self_attn.v_proj": "blk.0.attn_v", "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
    "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate", "model.layers.0.mlp.up_proj": "blk.0.ffn_up",
    "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
}
MOST = {"llama_q4_k_m": "Q4_K", "llama_q5_k_m": "Q5_K"}
IN_Q6_K = ("output", "blk.0.attn_v", "blk.0.ffn_down")
QK_BLOCK = 32  # of the activations
NUM_TOKENS = 70
RNG = numpy.random.default_rng(20240917)


def interleaved(name: str) -> bool:
    return name.endswith(("attn_q", "attn_k"))


def permute(rows: numpy.ndarray, inverse: bool) -> numpy.ndarray:
    """Converts the half-split rotary rows (i, i + d/2) of every head to GGUF's interleaved rows (2i, 2i + 1), or
    back."""
    half = CONFIG["head_dim"] // 2
    split = (-1, half, 2) if inverse else (-1, 2, half)
    return rows.reshape(*split, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def random_weights(model) -> dict:
    """Returns float32 weights by GGUF name. Rows differ in scale, so that no two blocks have the same scale."""
    weights = {}
    for key, value in model.state_dict().items():
        name, shape = NAMES[key.removesuffix(".weight")], tuple(value.shape)
        if len(shape) == 1:
            weights[name] = RNG.uniform(0.5, 1.5, shape).astype(numpy.float32)
        else:
            gain = 1.0 if name == "token_embd" else 1.0 / numpy.sqrt(shape[1])
            scales = RNG.uniform(0.5, 1.5, (shape[0], 1))
            weights[name] = (RNG.normal(0, gain, shape) * scales).astype(numpy.float32)
    return weights


def write_file(path: pathlib.Path, weights: dict, most: str):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_key_length(CONFIG["head_dim"])
    writer.add_value_length(CONFIG["head_dim"])
    writer.add_rope_dimension_count(CONFIG["head_dim"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_vocab_size(CONFIG["vocab_size"])
    for name, values in weights.items():
        if values.ndim == 1:
            writer.add_tensor(name + ".weight", values)
            continue
        kind = "Q6_K" if name in IN_Q6_K else most
        rows = permute(values, inverse=False) if interleaved(name) else values
        writer.add_tensor(name + ".weight", quantize(rows, kind), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_file(path: pathlib.Path) -> dict:
    """Returns the weights of the file under transformers' names."""
    tensors = {tensor.name.removesuffix(".weight"): tensor for tensor in gguf.GGUFReader(path).tensors}
    state = {}
    for key, name in NAMES.items():
        values = dequantize(tensors[name].data, tensors[name].tensor_type)
        state[key + ".weight"] = torch.from_numpy(permute(values, inverse=True) if interleaved(name) else values)
    return state


def run(model, ids) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def int8_bound(model, ids, logits) -> float:
    worst = 0.0
    for seed in range(make_goldens.RUNS):
        generator = torch.Generator().manual_seed(seed)

        def moved(values):
            blocks = values.unflatten(-1, (-1, QK_BLOCK))
            half_step = blocks.abs().amax(-1, keepdim=True) / 254
            noise = 2 * torch.rand(blocks.shape, generator=generator, dtype=blocks.dtype) - 1
            return (blocks + half_step * noise).flatten(-2)

        hooks = []
        for name, module in model.named_modules():
            if type(module).__name__.endswith("RMSNorm"):  # what follows one is a product, or several of one input
                hooks.append(module.register_forward_hook(lambda _module, _inputs, output: moved(output)))
            if name.endswith(("o_proj", "down_proj")):
                hooks.append(module.register_forward_pre_hook(lambda _module, inputs: (moved(inputs[0]),)))
        worst = max(worst, (run(model, ids) - logits).abs().max().item())
        for hook in hooks:
            hook.remove()
    return 2 * worst


def margins(logits: torch.Tensor) -> torch.Tensor:
    top2 = logits.topk(2, dim=-1).values
    return top2[..., 0] - top2[..., 1]


def choose_ids(models, margin: float) -> list:
    """Chooses random tokens such that, at each position, the largest logit exceeds the others by `margin` in
    every model."""
    ids = []
    while len(ids) < NUM_TOKENS:
        candidates = RNG.permutation(CONFIG["vocab_size"])
        ids.append(next(int(token) for token in candidates
                        if all(margins(run(model, ids + [int(token)])[-1]) > margin for model in models)))
    return ids


def main():
    directory = pathlib.Path(__file__).parent / "testdata"
    config = transformers.LlamaConfig(**CONFIG, bos_token_id=1, eos_token_id=2)
    config._attn_implementation = "eager"
    original = transformers.LlamaForCausalLM(config).eval()
    weights = random_weights(original)
    original.load_state_dict({key + ".weight": torch.from_numpy(weights[name]) for key, name in NAMES.items()})
    original = original.double()
    models = {}
    for file, most in MOST.items():
        write_file(directory / f"{file}.gguf", weights, most)
        models[file] = transformers.LlamaForCausalLM(config).eval()
        models[file].load_state_dict(read_file(directory / f"{file}.gguf"))
        models[file] = models[file].double()

    def bound_of(model, ids):
        logits = run(model, ids)
        return (int8_bound(model, ids, logits) + make_goldens.rounding_bound(model, ids, logits, config) +
                make_goldens.frequency_error(model, ids, logits, config))

    some_ids = [int(token) for token in RNG.integers(0, CONFIG["vocab_size"], NUM_TOKENS)]
    # The argmax needs a margin of twice the bound. The margin is a quarter more, because the bound for the
    # chosen tokens differs from the bound for some_ids.
    ids = choose_ids(models.values(), 2.5 * max(bound_of(model, some_ids) for model in models.values()))
    cases = []
    for file, model in models.items():
        logits, bound = run(model, ids), bound_of(model, ids)
        cases.append({"file": f"{file}.gguf", "ids": ids, "bound": bound,
                      "logits": base64.b64encode(logits.float().numpy().tobytes()).decode()})
        print(f"{file} bound {bound:.2e} smallest margin {margins(logits).min():.2e} spread {logits.std():.2f} "
              f"unquantised weights {(run(original, ids) - logits).abs().max():.2e} away")
    versions = {package: importlib.metadata.version(package) for package in ("transformers", "gguf", "xllamacpp")}
    (directory / "k_quant_goldens.json").write_text(json.dumps({**versions, "cases": cases}, indent=0) + "\n")


if __name__ == "__main__":
    main()
