"""Refact, whose code is published with its weights and not in transformers. Only the reference computes its logits."""

import torch

import reference_decoder as reference

BASE = dict(architectures=["GPTRefactForCausalLM"], vocab_size=64, n_embd=96, n_layer=2, n_head=6, n_positions=256,
            n_inner=192, layer_norm_epsilon=1e-5, multi_query=True)
INNER = 256  # two thirds of 192, to the next multiple of 256
CASES = {"refact": BASE, "refact_eight_heads": dict(BASE, n_embd=64, n_head=8)}


def shapes(config):
    width, vocab = config["n_embd"], config["vocab_size"]
    dim = width // config["n_head"]
    found = {"transformer.wte.weight": [vocab, width]}
    for i in range(config["n_layer"]):
        for name, shape in (("ln_1", [width]), ("attn.q", [width, width]), ("attn.kv", [2 * dim, width]),
                            ("attn.c_proj", [width, width]), ("ln_2", [width]),
                            ("mlp.gate_up_proj", [2 * INNER, width]), ("mlp.c_proj", [width, INNER])):
            found[f"transformer.h.{i}.{name}.weight"] = shape
    return found | {"ln_f.weight": [width], "lm_head.weight": [vocab, width]}


def describe(config, tensors, _):
    heads = config["n_head"]
    description = reference.Description(heads=heads, kv_heads=1, head_dim=config["n_embd"] // heads,
                                        eps=config["layer_norm_epsilon"], rms_norm=True, alibi_bias_max=8.0,
                                        activation="silu_mul")
    layers = []
    for i in range(config["n_layer"]):
        def named(name, i=i):
            return tensors[f"transformer.h.{i}.{name}.weight"]

        layers.append(reference.Layer(
            attention_norm=(named("ln_1"), None), mlp_norm=(named("ln_2"), None), o=named("attn.c_proj"),
            qkv=torch.cat([named("attn.q"), named("attn.kv")]), up=named("mlp.gate_up_proj"),
            down=named("mlp.c_proj")))
    return description, reference.Weights(embedding=tensors["transformer.wte.weight"], layers=layers,
                                          final_norm=(tensors["ln_f.weight"], None), head=tensors["lm_head.weight"])


def oracle(config, tensors, ids):
    return None
