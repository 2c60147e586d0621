#!/usr/bin/env python3
"""Writes testdata/llama_goldens.json: logits of randomly initialised tiny Llamas, by transformers.

    python3 make_goldens.py        needs torch, transformers, numpy

Weights are a function of (tensor name, index), the same here and in MakeTinyLlama
(tests/testing/in_memory_weights.cc), so no weights are stored. Logits come from a float64 run. `bound`
is how far a float32 run may be from it: the float64 run is repeated with every op's result perturbed by
its float32 rounding error in the probabilistic model of Higham and Mary (SIAM J. Sci. Comput. 41, 2019),
lambda * sqrt(K) * 2^-24 relative for a sum of K terms with lambda = 6, and the largest change of any logit
over 24 such runs is doubled.
"""

import base64
import json
import math
import pathlib

import numpy
import torch
import transformers

UNIT_ROUNDOFF = 2.0**-24
LAMBDA = 6.0
RUNS = 24

BASE = dict(vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
            rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
CASES = {
    "gqa_untied": {},
    "mha_tied": dict(num_key_value_heads=4, tie_word_embeddings=True),
    "mqa": dict(num_key_value_heads=1),
    "gqa_ratio_3": dict(num_attention_heads=6, num_key_value_heads=2, head_dim=8),
    "wide_heads": dict(num_attention_heads=2, num_key_value_heads=1, head_dim=64),
    "head_dim_256": dict(num_attention_heads=2, num_key_value_heads=1, head_dim=256, num_hidden_layers=1),
    "biases": dict(attention_bias=True, mlp_bias=True),
    "rope_linear": dict(rope_scaling=dict(rope_type="linear", factor=4.0)),
    "rope_llama3": dict(rope_scaling=LLAMA3, rope_theta=500000.0),
    "odd_sizes": dict(hidden_size=40, intermediate_size=44, vocab_size=53, head_dim=24, num_hidden_layers=3),
}
NUM_TOKENS = 70


def tensor_values(name: str, size: int) -> numpy.ndarray:
    """Returns numbers from [-1, 1), multiples of 2^-15, from splitmix64 seeded with the name's FNV-1a hash."""
    hashed = 0xCBF29CE484222325
    for byte in name.encode():
        hashed = ((hashed ^ byte) * 0x100000001B3) % 2**64
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(hashed) + numpy.arange(1, size + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    return (z >> numpy.uint64(48)).astype(numpy.float64) / 2**15 - 1.0


def fill(name: str, shape) -> torch.Tensor:
    """Returns the values that MakeTinyLlama gives a tensor: norms around 1, matrices of about unit gain, rounded
    to float32."""
    values = tensor_values(name, math.prod(shape))
    if "norm" in name or "_ln" in name:
        values = 1.0 + 0.25 * values
    elif len(shape) > 1 and "embed_tokens" not in name:
        values = values * numpy.float64(numpy.float32(2.5 / math.sqrt(shape[-1])))
    return torch.from_numpy(values.astype(numpy.float32)).reshape(shape)


def perturb(module, size, generator):
    scale = LAMBDA * math.sqrt(size) * UNIT_ROUNDOFF

    def hook(_module, _inputs, output):
        noise = 2 * torch.rand(output.shape, generator=generator, dtype=output.dtype) - 1
        return output * (1 + scale * noise)

    return module.register_forward_hook(hook)


def perturb_input(module, size, generator):
    scale = LAMBDA * math.sqrt(size) * UNIT_ROUNDOFF

    def hook(_module, inputs):
        noise = 2 * torch.rand(inputs[0].shape, generator=generator, dtype=inputs[0].dtype) - 1
        return (inputs[0] * (1 + scale * noise),) + inputs[1:]

    return module.register_forward_pre_hook(hook)


def rounding_bound(model, ids, logits, config) -> float:
    worst = 0.0
    for seed in range(RUNS):
        generator = torch.Generator().manual_seed(seed)
        hooks = []
        for name, module in model.named_modules():
            kind = type(module).__name__
            if kind == "Linear":
                # The 16 is for 4 more roundings, in the RoPE or the epilogue that follows a projection.
                hooks.append(perturb(module, module.in_features + 16, generator))
            elif kind.endswith("RMSNorm"):
                hooks.append(perturb(module, config.hidden_size + 16, generator))
            if name.endswith("o_proj"):  # attention: scores over head_dim, exp, sums over positions
                hooks.append(perturb_input(module, config.head_dim + len(ids) + 64, generator))
            if name.endswith("down_proj"):  # silu and product
                hooks.append(perturb_input(module, 16, generator))
        with torch.no_grad():
            changed = model(torch.tensor([ids])).logits[0]
        worst = max(worst, (changed - logits).abs().max().item())
        for hook in hooks:
            hook.remove()
    return 2 * worst


def main():
    cases = []
    for name, options in CASES.items():
        config = transformers.LlamaConfig(**{**BASE, **options}, bos_token_id=1, eos_token_id=2)
        model = transformers.LlamaForCausalLM(config).eval()
        state = {key: fill(key, value.shape) for key, value in model.state_dict().items()}
        if config.tie_word_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state)
        model = model.double()
        model.config._attn_implementation = "eager"
        for salt in range(50):  # the first prompt whose margins decide nearly every argmax
            ids = [int(v) for v in (numpy.abs(tensor_values(f"ids.{salt}.{name}", NUM_TOKENS)) * config.vocab_size)]
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0]
            top2 = logits.topk(2, dim=-1).values
            # The second term covers the angles of RoPE, which transformers computes in float32 and Quire in
            # float64.
            bound = rounding_bound(model, ids, logits, config) + frequency_error(model, ids, logits, config)
            if ((top2[:, 0] - top2[:, 1]) > 2 * bound).double().mean() >= 0.99:
                break
        margins = (top2[:, 0] - top2[:, 1]).numpy()
        saved = json.loads(config.to_json_string(use_diff=False))
        keep = ("vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
                "head_dim max_position_embeddings rms_norm_eps tie_word_embeddings attention_bias mlp_bias hidden_act "
                "model_type").split()
        saved_config = {key: saved[key] for key in keep}
        saved_config["architectures"] = ["LlamaForCausalLM"]
        saved_config["rope_theta"] = {**BASE, **options}["rope_theta"]
        if "rope_scaling" in options:
            saved_config["rope_scaling"] = options["rope_scaling"]
        cases.append({
            "name": name,
            "config": saved_config,
            "ids": ids,
            "bound": bound,
            "logits": base64.b64encode(logits.float().numpy().tobytes()).decode(),
        })
        print(f"{name:14} bound {bound:.2e} smallest margin {margins.min():.2e} "
              f"margins over twice the bound {(margins > 2 * bound).mean():.3f} spread {logits.std().item():.2f}")
    path = pathlib.Path(__file__).parent / "testdata" / "llama_goldens.json"
    path.write_text(json.dumps({"transformers": transformers.__version__, "cases": cases}, indent=0) + "\n")


def frequency_error(model, ids, logits, config) -> float:
    """Returns the largest difference of a logit between float32 RoPE angles, as in transformers, and float64 angles."""
    rotary = model.model.rotary_emb
    forward = rotary.forward

    def exact(x, position_ids):
        frequencies = exact_frequencies(config)
        angles = position_ids[:, :, None].double() * frequencies[None, None, :]
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    rotary.forward = exact
    with torch.no_grad():
        changed = model(torch.tensor([ids])).logits[0]
    rotary.forward = forward
    return (changed - logits).abs().max().item()


def exact_frequencies(config) -> torch.Tensor:
    rope = getattr(config, "rope_parameters", None) or config.rope_scaling or {}
    theta = rope.get("rope_theta", getattr(config, "rope_theta", None))
    frequencies = theta ** -(torch.arange(0, config.head_dim, 2).double() / config.head_dim)
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        frequencies = frequencies / rope["factor"]
    elif kind == "llama3":
        context = rope["original_max_position_embeddings"]
        wavelength = 2 * math.pi / frequencies
        smooth = (context / wavelength - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        blended = (1 - smooth) * frequencies / rope["factor"] + smooth * frequencies
        low, high = context / rope["low_freq_factor"], context / rope["high_freq_factor"]
        frequencies = torch.where(wavelength > low, frequencies / rope["factor"],
                                  torch.where(wavelength < high, frequencies, blended))
    return frequencies


if __name__ == "__main__":
    main()
