"""Gemma 3: transformers has all of it; its softmax is float32's."""

import math

import torch
import transformers

import reference_decoder as reference

BASE = dict(architectures=["Gemma3ForCausalLM"], vocab_size=64, hidden_size=64, intermediate_size=96,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=20,
            max_position_embeddings=256, rms_norm_eps=1e-6, query_pre_attn_scalar=16, rope_theta=1000000.0,
            rope_local_base_freq=10000.0, hidden_activation="gelu_pytorch_tanh", pad_token_id=0, bos_token_id=2,
            eos_token_id=1)
SLIDING, FULL = "sliding_attention", "full_attention"
CASES = {
    "gemma3": dict(BASE, layer_types=[SLIDING, FULL, SLIDING]),
    "gemma3_pattern": dict(BASE, num_hidden_layers=7, num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=24),
    "gemma3_scaled": dict(BASE, layer_types=[SLIDING, SLIDING, FULL], rope_scaling=dict(rope_type="linear", factor=8.0)),
    "gemma3_untied": dict(BASE, layer_types=[FULL, SLIDING, FULL], tie_word_embeddings=False, attention_bias=True,
                          rope_local_base_freq=5000.0),
}
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


def shapes(config):
    width, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    found = {"model.embed_tokens.weight": [config["vocab_size"], width]}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        found |= {f"{layer}{norm}.weight": [width] for norm in NORMS}
        found |= {f"{layer}self_attn.{name}_norm.weight": [dim] for name in "qk"}
        for name, rows, cols in (("q", q, width), ("k", kv, width), ("v", kv, width), ("o", width, q)):
            found[f"{layer}self_attn.{name}_proj.weight"] = [rows, cols]
            if config.get("attention_bias"):
                found[f"{layer}self_attn.{name}_proj.bias"] = [rows]
        for name, rows, cols in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
            found[f"{layer}mlp.{name}_proj.weight"] = [rows, cols]
    found["model.norm.weight"] = [width]
    if not config.get("tie_word_embeddings", True):
        found["lm_head.weight"] = [config["vocab_size"], width]
    return found


def describe(config, tensors, _):
    dim = config["head_dim"]

    def frequencies(theta):
        return theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    description = reference.Description(
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"], head_dim=dim,
        eps=config["rms_norm_eps"], rms_norm=True, activation="gelu_tanh_mul",
        embedding_scale=math.sqrt(config["hidden_size"]), scale=config["query_pre_attn_scalar"] ** -0.5,
        rope_frequencies=frequencies(config["rope_theta"]) / config.get("rope_scaling", {}).get("factor", 1.0))
    layers = []
    for i in range(config["num_hidden_layers"]):
        def weight(name, layer=f"model.layers.{i}."):
            return tensors[f"{layer}{name}.weight"]

        def norm(name, weight=weight):
            return 1 + weight(name), None

        types = config.get("layer_types")
        slides = types[i] == SLIDING if types else (i + 1) % 6 != 0
        biases = [tensors.get(f"model.layers.{i}.self_attn.{name}_proj.bias") for name in "qkvo"]
        layers.append(reference.Layer(
            attention_norm=norm("input_layernorm"), attention_post_norm=norm("post_attention_layernorm"),
            mlp_norm=norm("pre_feedforward_layernorm"), mlp_post_norm=norm("post_feedforward_layernorm"),
            q_norm=norm("self_attn.q_norm")[0], k_norm=norm("self_attn.k_norm")[0],
            qkv=torch.cat([weight(f"self_attn.{name}_proj") for name in "qkv"]), o=weight("self_attn.o_proj"),
            qkv_bias=None if biases[0] is None else torch.cat(biases[:3]), o_bias=biases[3],
            up=torch.cat([weight("mlp.gate_proj"), weight("mlp.up_proj")]), down=weight("mlp.down_proj"),
            window=config["sliding_window"] if slides else None,
            rope_frequencies=frequencies(config["rope_local_base_freq"]) if slides else None))
    embedding = tensors["model.embed_tokens.weight"]
    return description, reference.Weights(embedding=embedding, layers=layers,
                                          final_norm=(1 + tensors["model.norm.weight"], None),
                                          head=tensors.get("lm_head.weight", embedding))


def oracle(config, tensors, ids):
    model_config = transformers.Gemma3TextConfig(**config)
    model_config._attn_implementation = "eager"
    model = transformers.Gemma3ForCausalLM(model_config).eval().double()
    for norm in (m for m in model.modules() if type(m).__name__ == "Gemma3RMSNorm"):
        norm.forward = lambda x, norm=norm: norm._norm(x) * (1.0 + norm.weight)  # its own is in float32
    model.model.embed_tokens.embed_scale = torch.tensor(math.sqrt(config["hidden_size"]), dtype=torch.float64)
    model.load_state_dict({"lm_head.weight": tensors["model.embed_tokens.weight"], **tensors})
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
