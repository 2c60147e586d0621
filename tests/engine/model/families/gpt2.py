"""GPT-2, whose matrices are transposed. transformers computes logits for all cases."""

import torch
import transformers

import reference_decoder as reference

BASE = dict(architectures=["GPT2LMHeadModel"], vocab_size=64, n_embd=64, n_layer=2, n_head=4, n_positions=256,
            layer_norm_epsilon=1e-5, activation_function="gelu_new")
CASES = {
    "gpt2": BASE,
    "gpt2_untied": dict(BASE, n_embd=48, n_head=6, n_inner=80, tie_word_embeddings=False, activation_function="gelu"),
}
MATRICES = {"attn.c_attn": (3, 1), "attn.c_proj": (1, 1), "mlp.c_fc": ("inner", 1), "mlp.c_proj": (1, "inner")}


def shapes(config):
    width = config["n_embd"]
    inner = config.get("n_inner", 4 * width)
    found = {"transformer.wte.weight": [config["vocab_size"], width],
             "transformer.wpe.weight": [config["n_positions"], width]}
    for i in range(config["n_layer"]):
        for name, (rows, cols) in MATRICES.items():
            rows, cols = (inner if size == "inner" else size * width for size in (rows, cols))
            found |= {f"transformer.h.{i}.{name}.weight": [cols, rows], f"transformer.h.{i}.{name}.bias": [rows]}
    for norm in [f"h.{i}.ln_{n}" for i in range(config["n_layer"]) for n in (1, 2)] + ["ln_f"]:
        found |= {f"transformer.{norm}.{kind}": [width] for kind in ("weight", "bias")}
    if not config.get("tie_word_embeddings", True):
        found["lm_head.weight"] = [config["vocab_size"], width]
    return found


def describe(config, tensors, _):
    heads = config["n_head"]
    description = reference.Description(
        heads=heads, kv_heads=heads, head_dim=config["n_embd"] // heads, eps=config["layer_norm_epsilon"],
        activation="gelu_tanh" if config["activation_function"] == "gelu_new" else "gelu")
    layers = []
    for i in range(config["n_layer"]):
        def named(name, kind, i=i):
            return tensors[f"transformer.h.{i}.{name}.{kind}"]

        layers.append(reference.Layer(
            **{key: (named(name, "weight"), named(name, "bias"))
               for key, name in (("attention_norm", "ln_1"), ("mlp_norm", "ln_2"))},
            **{key: named(name, "weight").T for key, name in zip(("qkv", "o", "up", "down"), MATRICES)},
            **{f"{key}_bias": named(name, "bias") for key, name in zip(("qkv", "o", "up", "down"), MATRICES)}))
    embedding = tensors["transformer.wte.weight"]
    return description, reference.Weights(
        embedding=embedding, position_embedding=tensors["transformer.wpe.weight"], layers=layers,
        final_norm=(tensors["transformer.ln_f.weight"], tensors["transformer.ln_f.bias"]),
        head=tensors.get("lm_head.weight", embedding))


def oracle(config, tensors, ids):
    model_config = transformers.GPT2Config(**config)
    model_config._attn_implementation = "eager"
    model = transformers.GPT2LMHeadModel(model_config).eval().double()
    model.load_state_dict({"lm_head.weight": tensors["transformer.wte.weight"], **tensors}, strict=False)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
