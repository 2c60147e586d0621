"""OpenELM. Its class comes with the model and not with transformers, so the oracle is reference_decoder.py, written
from modeling_openelm.py: heads and feed-forward sizes by layer, projections of all heads in one matrix (Q, K, V), norms of
each head of queries and keys before the rotation, the gate above the rest of proj_1, a tied head, and 1e-6 in each norm.
llama.cpp, which has the architecture, agrees (make_gguf_goldens.py).
"""

import torch

import reference_decoder as reference

BASE = dict(architectures=["OpenELMForCausalLM"], model_type="openelm", vocab_size=64, model_dim=48,
            num_transformer_layers=3, head_dim=16, num_query_heads=[2, 4, 6], num_kv_heads=[1, 2, 2],
            ffn_multipliers=[0.5, 1.1, 2.0], ffn_dim_divisor=8, ffn_with_glu=True, activation_fn_name="swish",
            normalization_layer_name="rms_norm", normalize_qk_projections=True, share_input_output_layers=True,
            max_context_length=512, rope_freq_constant=10000, rope_max_length=1024, num_gqa_groups=2,
            qkv_multipliers=[0.5, 1.0])
CASES = {
    "openelm": BASE,
    # Fewer heads in the middle, one size of feed-forward network for all layers, and no norms of queries and keys.
    "openelm_plain": dict(BASE, num_query_heads=[6, 3, 5], num_kv_heads=[3, 1, 5], ffn_multipliers=1.6, head_dim=24,
                          normalize_qk_projections=False),
}


def divisible(value, divisor):
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


def inner_size(config, layer):
    multipliers = config["ffn_multipliers"]
    multiplier = multipliers[layer] if isinstance(multipliers, list) else multipliers
    return divisible(multiplier * config["model_dim"], config["ffn_dim_divisor"])


def shapes(config):
    width, dim = config["model_dim"], config["head_dim"]
    found = {"transformer.token_embeddings.weight": [config["vocab_size"], width]}
    for i in range(config["num_transformer_layers"]):
        layer, q, kv = f"transformer.layers.{i}.", config["num_query_heads"][i], config["num_kv_heads"][i]
        found |= {layer + "attn_norm.weight": [width], layer + "ffn_norm.weight": [width],
                  layer + "attn.qkv_proj.weight": [(q + 2 * kv) * dim, width],
                  layer + "attn.out_proj.weight": [width, q * dim],
                  layer + "ffn.proj_1.weight": [2 * inner_size(config, i), width],
                  layer + "ffn.proj_2.weight": [width, inner_size(config, i)]}
        if config["normalize_qk_projections"]:
            found |= {layer + "attn.q_norm.weight": [dim], layer + "attn.k_norm.weight": [dim]}
    return found | {"transformer.norm.weight": [width]}


def describe(config, tensors, context):
    dim = config["head_dim"]
    frequencies = config["rope_freq_constant"] ** -(torch.arange(0, dim, 2).double() / dim)
    description = reference.Description(heads=0, kv_heads=0, head_dim=dim, eps=1e-6, rms_norm=True,
                                        activation="silu_mul", rope_frequencies=frequencies)
    layers = []
    for i in range(config["num_transformer_layers"]):
        def named(name, layer=f"transformer.layers.{i}."):
            return tensors.get(layer + name + ".weight")

        layers.append(reference.Layer(
            attention_norm=(named("attn_norm"), None), qkv=named("attn.qkv_proj"), o=named("attn.out_proj"),
            mlp_norm=(named("ffn_norm"), None), up=named("ffn.proj_1"), down=named("ffn.proj_2"),
            q_norm=named("attn.q_norm"), k_norm=named("attn.k_norm"), heads=config["num_query_heads"][i],
            kv_heads=config["num_kv_heads"][i]))
    embedding = tensors["transformer.token_embeddings.weight"]
    return description, reference.Weights(embedding=embedding, layers=layers,
                                          final_norm=(tensors["transformer.norm.weight"], None), head=embedding)


def oracle(config, tensors, ids):
    return None
