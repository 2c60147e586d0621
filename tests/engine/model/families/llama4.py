"""Llama 4's text model, by itself and inside a model for text and images. transformers computes logits for all cases.

Layers that rotate queries and keys see only the keys of the query's chunk, and may normalise each head by its root mean
square, without weights, after the rotation. The other layers see every key, and may multiply queries by a factor that
grows with the logarithm of their position. A mixture scales the input of each chosen expert by the logistic function of
its logit, and adds the output of a shared network. A layer without a mixture is intermediate_size_mlp wide. Projections
of experts are stored as [in, out].
"""

import math

import torch
import transformers

import reference_decoder as reference
from families import llama_like

FULL, CHUNKED = "full_attention", "chunked_attention"
BASE = dict(architectures=["Llama4ForCausalLM"], model_type="llama4_text", vocab_size=64, hidden_size=48,
            intermediate_size=40, intermediate_size_mlp=56, num_hidden_layers=5, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, num_local_experts=5, num_experts_per_tok=1, attention_chunk_size=20,
            rms_norm_eps=1e-5, rope_theta=500000.0, max_position_embeddings=512, tie_word_embeddings=False,
            hidden_act="silu", floor_scale=8, attn_scale=0.3, pad_token_id=0)
CASES = {
    "llama4": BASE,
    # Every second layer has a mixture, as in Maverick, which has no norm of queries and keys.
    "llama4_interleaved": dict(BASE, num_hidden_layers=4, interleave_moe_layer_step=2, use_qk_norm=False,
                               num_local_experts=8, num_experts_per_tok=3, attn_temperature_tuning=False),
    "llama4_lists": dict(BASE, num_hidden_layers=3, moe_layers=[0, 2], no_rope_layers=[1, 1, 0],
                         layer_types=[FULL, CHUNKED, CHUNKED], attention_chunk_size=7, attention_bias=True,
                         rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                           original_max_position_embeddings=32)),
    "llama4_images": dict(
        architectures=["Llama4ForConditionalGeneration"], model_type="llama4", image_token_index=60,
        text_config={key: value for key, value in dict(BASE, num_hidden_layers=4, no_rope_layers=[]).items()
                     if key != "architectures"},
        vision_config=dict(model_type="llama4_vision_model", hidden_size=16, intermediate_size=64, num_hidden_layers=1,
                           num_attention_heads=2, image_size=8, patch_size=4, vision_output_dim=16,
                           projector_input_dim=16, projector_output_dim=16)),
}
# The chunks, the growth of queries and the interval of the published models, which a GGUF file cannot hold.
PUBLISHED = dict(attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1)
CASES |= {
    "llama4_published": dict(BASE, **PUBLISHED, num_hidden_layers=4, interleave_moe_layer_step=2),
    # Scout's llama3 scaling blends no frequencies: its two factors are equal.
    "llama4_published_images": dict(CASES["llama4_images"], text_config=dict(
        CASES["llama4_images"]["text_config"], **PUBLISHED,
        rope_scaling=dict(rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0,
                          original_max_position_embeddings=32))),
}
IMAGE_TENSORS = {"vision_model.class_embedding": [16], "vision_model.layernorm_pre.weight": [16],
                 "multi_modal_projector.linear_1.weight": [48, 16]}
TEXT_PREFIX = "language_model."


def turns(config, layer):
    """Returns whether the layer has rotary positions."""
    return bool((config.get("no_rope_layers") or [(layer + 1) % 4 != 0] * (layer + 1))[layer])


def has_experts(config, layer):
    step = config.get("interleave_moe_layer_step", 1)
    return layer in config.get("moe_layers", range(step - 1, config["num_hidden_layers"], step))


def shapes(config):
    if "text_config" in config:
        found = {TEXT_PREFIX + name: shape for name, shape in shapes(config["text_config"]).items()}
        return found | IMAGE_TENSORS
    width, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv, experts = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim, config["num_local_experts"]
    found = {"model.embed_tokens.weight": [config["vocab_size"], width]}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        found[layer + "input_layernorm.weight"] = [width]
        found[layer + "post_attention_layernorm.weight"] = [width]
        for name, rows, cols in (("q", q, width), ("k", kv, width), ("v", kv, width), ("o", width, q)):
            found[f"{layer}self_attn.{name}_proj.weight"] = [rows, cols]
            if config.get("attention_bias"):
                found[f"{layer}self_attn.{name}_proj.bias"] = [rows]
        network = layer + "feed_forward."
        if has_experts(config, i):
            found |= {network + "router.weight": [experts, width],
                      network + "experts.gate_up_proj": [experts, width, 2 * inner],
                      network + "experts.down_proj": [experts, inner, width]}
            network += "shared_expert."
        size = inner if has_experts(config, i) else config["intermediate_size_mlp"]
        for name, rows, cols in (("gate", size, width), ("up", size, width), ("down", width, size)):
            found[f"{network}{name}_proj.weight"] = [rows, cols]
    return found | {"model.norm.weight": [width], "lm_head.weight": [config["vocab_size"], width]}


def text_half(config, tensors):
    """Returns the text model as a Llama4ForCausalLM."""
    if "text_config" not in config:
        return config, tensors
    named = {name.removeprefix(TEXT_PREFIX): tensor for name, tensor in tensors.items() if name.startswith(TEXT_PREFIX)}
    return config["text_config"], named


def describe(config, tensors, context):
    config, tensors = text_half(config, tensors)
    frequencies, factor = llama_like.rotary(config, context)
    assert factor == 1.0
    description = reference.Description(
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"], head_dim=config["head_dim"],
        eps=config["rms_norm_eps"], rms_norm=True, activation="silu_mul", rope_frequencies=frequencies,
        rope_interleaved=True, experts_per_token=config["num_experts_per_tok"], logistic_inputs=True)
    layers = []
    for i in range(config["num_hidden_layers"]):
        def named(name, layer=f"model.layers.{i}."):
            return tensors.get(layer + name)

        def network(name, named=named):
            up = torch.cat([named(f"{name}gate_proj.weight"), named(f"{name}up_proj.weight")])
            return up, named(f"{name}down_proj.weight")

        types, rotates = config.get("layer_types"), turns(config, i)
        chunked = types[i] == CHUNKED if types else rotates
        biases = [named(f"self_attn.{name}_proj.bias") for name in "qkv"]
        ones = torch.ones(config["head_dim"], dtype=torch.float64)
        normed = rotates and config.get("use_qk_norm", True)
        layer = reference.Layer(
            attention_norm=(named("input_layernorm.weight"), None),
            mlp_norm=(named("post_attention_layernorm.weight"), None),
            qkv=torch.cat([named(f"self_attn.{name}_proj.weight") for name in "qkv"]),
            qkv_bias=None if biases[0] is None else torch.cat(biases),
            o=named("self_attn.o_proj.weight"), o_bias=named("self_attn.o_proj.bias"),
            q_norm=ones if normed else None, k_norm=ones if normed else None,
            chunk=config["attention_chunk_size"] if chunked else None,
            rope_frequencies=None if rotates else frequencies[:0], up=None, down=None)
        if not rotates and config.get("attn_temperature_tuning", True):
            layer.query_growth = config["floor_scale"], config["attn_scale"]
        if has_experts(config, i):
            layer.router = named("feed_forward.router.weight")
            layer.up = named("feed_forward.experts.gate_up_proj").transpose(1, 2)
            layer.down = named("feed_forward.experts.down_proj").transpose(1, 2)
            layer.shared = network("feed_forward.shared_expert.")
        else:
            layer.up, layer.down = network("feed_forward.")
        layers.append(layer)
    return description, reference.Weights(embedding=tensors["model.embed_tokens.weight"], layers=layers,
                                          final_norm=(tensors["model.norm.weight"], None),
                                          head=tensors["lm_head.weight"])


def oracle(config, tensors, ids):
    config, tensors = text_half(config, tensors)
    model_config = transformers.Llama4TextConfig(**config)
    model_config._attn_implementation = "eager"
    model = transformers.Llama4ForCausalLM(model_config).eval().double()
    model.load_state_dict(tensors)
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]
