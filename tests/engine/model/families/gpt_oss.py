"""gpt-oss with unpacked weights. transformers computes logits for all cases.

A query's sink is one more logit of the softmax, without a value, added after mask and scale. The router has a bias, and
the softmax is over the chosen experts. An expert's gate and up projection alternate as columns of one matrix, [in, out]
like the down projection. The gate is clamped from above, and up from both sides. The input of the down projection is
(up + 1) * gate * sigmoid(alpha * gate). YaRN without rounding to whole dimensions scales the rotary positions of all
layers. Even layers have the window.
"""

import torch
import transformers

import reference_decoder as reference
from families import llama_like

SLIDING, FULL = "sliding_attention", "full_attention"
YARN = dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
            original_max_position_embeddings=16)
BASE = dict(architectures=["GptOssForCausalLM"], model_type="gpt_oss", vocab_size=64, hidden_size=48,
            intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            num_local_experts=6, num_experts_per_tok=2, sliding_window=20, swiglu_limit=7.0, rms_norm_eps=1e-5,
            rope_theta=150000.0, rope_scaling=YARN, max_position_embeddings=512, attention_bias=True,
            tie_word_embeddings=False, hidden_act="silu")
CASES = {
    "gpt_oss": BASE,
    # As in the published models: heads of 64 dimensions, four experts per token.
    "gpt_oss_wide_heads": dict(BASE, hidden_size=40, intermediate_size=24, num_hidden_layers=2, head_dim=64,
                               num_attention_heads=6, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=4),
    "gpt_oss_clamped": dict(BASE, swiglu_limit=1.5, layer_types=[FULL, SLIDING, FULL], attention_bias=False,
                            num_experts_per_tok=1, num_local_experts=5),
}


def shapes(config):
    width, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv, experts = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim, config["num_local_experts"]
    found = {"model.embed_tokens.weight": [config["vocab_size"], width]}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        found[layer + "input_layernorm.weight"] = [width]
        found[layer + "post_attention_layernorm.weight"] = [width]
        for name, rows, cols in (("q", q, width), ("k", kv, width), ("v", kv, width), ("o", width, q)):
            found[f"{layer}self_attn.{name}_proj.weight"] = [rows, cols]
            if config["attention_bias"]:
                found[f"{layer}self_attn.{name}_proj.bias"] = [rows]
        found[layer + "self_attn.sinks"] = [config["num_attention_heads"]]
        found |= {layer + "mlp.router.weight": [experts, width], layer + "mlp.router.bias": [experts],
                  layer + "mlp.experts.gate_up_proj": [experts, width, 2 * inner],
                  layer + "mlp.experts.gate_up_proj_bias": [experts, 2 * inner],
                  layer + "mlp.experts.down_proj": [experts, inner, width],
                  layer + "mlp.experts.down_proj_bias": [experts, width]}
    return found | {"model.norm.weight": [width], "lm_head.weight": [config["vocab_size"], width]}


def split(gate_up):
    """Reorders the last dimension: first all of the gate, then all of up."""
    return torch.cat([gate_up[..., ::2], gate_up[..., 1::2]], dim=-1)


def describe(config, tensors, context):
    frequencies, factor = llama_like.rotary(config, context)
    description = reference.Description(
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"], head_dim=config["head_dim"],
        eps=config["rms_norm_eps"], rms_norm=True, experts_per_token=config["num_experts_per_tok"],
        activation="clamped_silu_mul", activation_limit=config["swiglu_limit"], rope_frequencies=frequencies,
        rope_factor=factor)
    layers = []
    for i in range(config["num_hidden_layers"]):
        def named(name, layer=f"model.layers.{i}."):
            return tensors.get(layer + name)

        biases = [named(f"self_attn.{name}_proj.bias") for name in "qkv"]
        types = config.get("layer_types")
        layers.append(reference.Layer(
            attention_norm=(named("input_layernorm.weight"), None),
            mlp_norm=(named("post_attention_layernorm.weight"), None),
            qkv=torch.cat([named(f"self_attn.{name}_proj.weight") for name in "qkv"]),
            qkv_bias=None if biases[0] is None else torch.cat(biases),
            o=named("self_attn.o_proj.weight"), o_bias=named("self_attn.o_proj.bias"), sinks=named("self_attn.sinks"),
            window=config["sliding_window"] if (types[i] == SLIDING if types else i % 2 == 0) else None,
            router=named("mlp.router.weight"), router_bias=named("mlp.router.bias"),
            up=split(named("mlp.experts.gate_up_proj")).transpose(1, 2),
            up_bias=split(named("mlp.experts.gate_up_proj_bias")),
            down=named("mlp.experts.down_proj").transpose(1, 2), down_bias=named("mlp.experts.down_proj_bias")))
    return description, reference.Weights(embedding=tensors["model.embed_tokens.weight"], layers=layers,
                                          final_norm=(tensors["model.norm.weight"], None),
                                          head=tensors["lm_head.weight"])


def oracle(config, tensors, ids):
    model_config = transformers.GptOssConfig(**config)
    model_config._attn_implementation = "eager"
    model_config._experts_implementation = "eager"
    model = transformers.GptOssForCausalLM(model_config).eval().double()
    model.load_state_dict(tensors)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
