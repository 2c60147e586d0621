"""MiMo-V2-Flash with unpacked weights. transformers computes logits for all cases.

Values are shorter (or longer) than keys and scaled. Layers with a window have twice as many KV heads, sinks, and rotary
frequencies of their own. A part of each head turns. The router's logistic values, with a bias that counts for the choice
alone, choose the experts; their weights sum to 1. The first layer is dense.
"""

import torch
import transformers

import reference_decoder as reference

SLIDING, FULL = "sliding_attention", "full_attention"
BASE = dict(architectures=["MiMoV2FlashForCausalLM"], model_type="mimo_v2_flash", vocab_size=64, hidden_size=48,
            intermediate_size=80, moe_intermediate_size=40, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=1, head_dim=48, v_head_dim=32, n_routed_experts=6, num_experts_per_tok=2, n_group=1,
            topk_group=1, norm_topk_prob=True, sliding_window=20, rms_norm_eps=1e-5, max_position_embeddings=512,
            attention_bias=False, attention_value_scale=0.707, tie_word_embeddings=False, hidden_act="silu")
CASES = {
    "mimo_v2_flash": BASE,
    # Values longer than keys, biases, a scale of 1, thetas of its own, dense layers among the sparse.
    "mimo_v2_flash_long_values": dict(
        BASE, head_dim=24, v_head_dim=40, num_key_value_heads=2, attention_bias=True, attention_value_scale=None,
        num_hidden_layers=3, layer_types=[SLIDING, FULL, SLIDING], mlp_layer_types=["sparse", "dense", "sparse"],
        n_routed_experts=5, num_experts_per_tok=1, sliding_window=33, tie_word_embeddings=True,
        rope_parameters={FULL: dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5),
                         SLIDING: dict(rope_type="default", rope_theta=1e3, partial_rotary_factor=1.0)}),
}


def layer_types(config):
    count = config["num_hidden_layers"]
    kinds = config.get("layer_types") or [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(count)]
    networks = config.get("mlp_layer_types") or ["dense"] + ["sparse"] * (count - 1)
    return [(kind == SLIDING, network == "sparse") for kind, network in zip(kinds, networks)]


def kv_heads(config, sliding):
    return config["num_key_value_heads"] * (2 if sliding else 1)


def shapes(config):
    width, heads, experts = config["hidden_size"], config["num_attention_heads"], config["n_routed_experts"]
    dense, inner = config["intermediate_size"], config["moe_intermediate_size"]
    found = {"model.embed_tokens.weight": [config["vocab_size"], width]}
    for i, (sliding, sparse) in enumerate(layer_types(config)):
        layer, kv = f"model.layers.{i}.", kv_heads(config, sliding)
        found |= {layer + "input_layernorm.weight": [width], layer + "post_attention_layernorm.weight": [width]}
        for name, rows in (("q", heads * config["head_dim"]), ("k", kv * config["head_dim"]),
                           ("v", kv * config["v_head_dim"])):
            found[f"{layer}self_attn.{name}_proj.weight"] = [rows, width]
            if config["attention_bias"]:
                found[f"{layer}self_attn.{name}_proj.bias"] = [rows]
        found[layer + "self_attn.o_proj.weight"] = [width, heads * config["v_head_dim"]]
        if sliding:
            found[layer + "self_attn.attention_sink_bias"] = [heads]
        if sparse:
            found |= {layer + "mlp.gate.weight": [experts, width], layer + "mlp.gate.e_score_correction_bias": [experts],
                      layer + "mlp.experts.gate_up_proj": [experts, 2 * inner, width],
                      layer + "mlp.experts.down_proj": [experts, width, inner]}
        else:
            found |= {layer + "mlp.gate_proj.weight": [dense, width], layer + "mlp.up_proj.weight": [dense, width],
                      layer + "mlp.down_proj.weight": [width, dense]}
    found["model.norm.weight"] = [width]
    return found if config["tie_word_embeddings"] else found | {"lm_head.weight": [config["vocab_size"], width]}


def frequencies(config, kind):
    usual = dict(rope_theta=5e6 if kind == FULL else 1e4, partial_rotary_factor=0.334)
    rope = config.get("rope_parameters", {}).get(kind, usual)
    dim = int(config["head_dim"] * rope["partial_rotary_factor"])
    return rope["rope_theta"] ** -(torch.arange(0, dim, 2).double() / dim)


def describe(config, tensors, context):
    description = reference.Description(
        heads=config["num_attention_heads"], kv_heads=0, head_dim=config["head_dim"], value_dim=config["v_head_dim"],
        eps=config["rms_norm_eps"], rms_norm=True, experts_per_token=config["num_experts_per_tok"], normed_logistic=True,
        activation="silu_mul", value_scale=config["attention_value_scale"] or 1.0)
    layers = []
    for i, (sliding, sparse) in enumerate(layer_types(config)):
        def named(name, layer=f"model.layers.{i}."):
            return tensors.get(layer + name)

        biases = [named(f"self_attn.{name}_proj.bias") for name in "qkv"]
        if sparse:
            network = dict(router=named("mlp.gate.weight"), choice_bias=named("mlp.gate.e_score_correction_bias"),
                           up=named("mlp.experts.gate_up_proj"), down=named("mlp.experts.down_proj"))
        else:
            network = dict(up=torch.cat([named("mlp.gate_proj.weight"), named("mlp.up_proj.weight")]),
                           down=named("mlp.down_proj.weight"))
        layers.append(reference.Layer(
            attention_norm=(named("input_layernorm.weight"), None),
            mlp_norm=(named("post_attention_layernorm.weight"), None),
            qkv=torch.cat([named(f"self_attn.{name}_proj.weight") for name in "qkv"]),
            qkv_bias=None if biases[0] is None else torch.cat(biases), o=named("self_attn.o_proj.weight"),
            kv_heads=kv_heads(config, sliding), sinks=named("self_attn.attention_sink_bias"),
            window=config["sliding_window"] if sliding else None,
            rope_frequencies=frequencies(config, SLIDING if sliding else FULL), **network))
    embedding = tensors["model.embed_tokens.weight"]
    return description, reference.Weights(embedding=embedding, layers=layers,
                                          final_norm=(tensors["model.norm.weight"], None),
                                          head=tensors.get("lm_head.weight", embedding))


def oracle(config, tensors, ids):
    model_config = transformers.MiMoV2FlashConfig(**config)
    model_config._attn_implementation = "eager"
    model_config._experts_implementation = "eager"
    model = transformers.MiMoV2FlashForCausalLM(model_config).eval().double()
    named = {name.replace("attention_sink_bias", "sinks"): tensor for name, tensor in tensors.items()}
    named.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    model.load_state_dict(named)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
