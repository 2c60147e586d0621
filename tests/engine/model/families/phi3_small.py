"""Phi-3-small. transformers has no class of it, so there is no oracle but reference_decoder.py, which follows the code
published beside the weights (modeling_phi3_small.py, triton_flash_blocksparse_attn.py) and vLLM's phi3_small.py.

A head sees the last blocks, and of the earlier ones every `stride`-th, at an offset of its own; every n-th layer is
dense. The prompt ends in its second block, whose queries see the first block in some heads alone. The gate and the
linear part of the feed-forward network alternate in the rows of one matrix. Scores are divided by the head's
dimension, not by its root, and tokens' rows and logits are scaled.
"""

import math

import torch

import reference_decoder as reference
from families import fused_qkv

BASE = dict(architectures=["Phi3SmallForCausalLM"], model_type="phi3small", vocab_size=64, hidden_size=64,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, ff_intermediate_size=48,
            hidden_act="gegelu", gegelu_limit=20.0, gegelu_pad_to_256=False, layer_norm_epsilon=1e-5,
            max_position_embeddings=512, rope_embedding_base=1000000, rope_position_scale=1.0, rope_scaling=None,
            mup_use_scaling=True, mup_attn_multiplier=1.0, mup_embedding_multiplier=10.0, mup_width_multiplier=8.0,
            blocksparse_block_size=64, blocksparse_num_local_blocks=1, blocksparse_vert_stride=3,
            blocksparse_homo_head_pattern=False, blocksparse_triton_kernel_block_size=64,
            dense_attention_every_n_layers=2)
LONGROPE = dict(type="su", original_max_position_embeddings=128, short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
                long_factor=[1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0], short_mscale=1.2, long_mscale=1.2)
CASES = {
    "phi3_small": BASE,
    # The clamp is reached. All layers have blocks, which are alike in all heads.
    "phi3_small_homo_head": dict(BASE, gegelu_limit=1.5, blocksparse_homo_head_pattern=True, blocksparse_vert_stride=2,
                                 dense_attention_every_n_layers=None, num_hidden_layers=2, mup_attn_multiplier=2.0),
    # The step of the heads is stride / heads = 2, so that no head sees the first block.
    "phi3_small_longrope": dict(BASE, rope_scaling=LONGROPE, num_key_value_heads=4, blocksparse_vert_stride=9,
                                mup_use_scaling=False, mup_width_multiplier=None, mup_embedding_multiplier=None),
}
NAMES = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
         "qkv": "self_attn.query_key_value", "o": "self_attn.dense", "up": "mlp.up_proj", "down": "mlp.down_proj"}


def shapes(config):
    width, inner = config["hidden_size"], config["ff_intermediate_size"]
    found = {"model.embed_tokens.weight": [config["vocab_size"], width]}
    found |= fused_qkv.shapes("model.layers.", NAMES, config["num_hidden_layers"], width, inner,
                              config["num_attention_heads"], config["num_key_value_heads"], biases=True)
    for i in range(config["num_hidden_layers"]):
        found[f"model.layers.{i}.mlp.up_proj.weight"] = [2 * inner, width]
        found[f"model.layers.{i}.mlp.up_proj.bias"] = [2 * inner]
    return found | {f"model.final_layernorm.{kind}": [width] for kind in ("weight", "bias")}


def rotary(config, context):
    dim = config["hidden_size"] // config["num_attention_heads"]
    frequencies = config["rope_embedding_base"] ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    scaling = config["rope_scaling"]
    if scaling is None:
        return frequencies, 1.0
    kind = "long" if context > scaling["original_max_position_embeddings"] else "short"
    return frequencies / torch.tensor(scaling[f"{kind}_factor"], dtype=torch.float64), scaling[f"{kind}_mscale"]


def layer(config, tensors, i):
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    found = fused_qkv.layer(tensors, f"model.layers.{i}.", NAMES, heads, kv_heads)
    found.up = torch.cat([found.up[::2], found.up[1::2]])
    found.up_bias = torch.cat([found.up_bias[::2], found.up_bias[1::2]])
    dense = config["dense_attention_every_n_layers"]
    if not dense or (i + 1) % dense != 0:
        stride = config["blocksparse_vert_stride"]
        step = 0 if config["blocksparse_homo_head_pattern"] else max(1, int(stride / heads))
        found.blocks = (config["blocksparse_block_size"], config["blocksparse_num_local_blocks"], stride, step)
    return found


def describe(config, tensors, context):
    heads = config["num_attention_heads"]
    dim = config["hidden_size"] // heads
    frequencies, factor = rotary(config, context)
    scale = config["mup_attn_multiplier"] / dim if config["mup_use_scaling"] else 1 / math.sqrt(dim)
    description = reference.Description(
        heads=heads, kv_heads=config["num_key_value_heads"], head_dim=dim, eps=config["layer_norm_epsilon"],
        rope_frequencies=frequencies, rope_factor=factor, scale=scale, activation="clamped_silu_mul",
        activation_limit=config["gegelu_limit"], embedding_scale=config["mup_embedding_multiplier"] or 1.0,
        logit_scale=1.0 / (config["mup_width_multiplier"] or 1.0))
    embedding = tensors["model.embed_tokens.weight"]
    return description, reference.Weights(
        embedding=embedding, layers=[layer(config, tensors, i) for i in range(config["num_hidden_layers"])],
        final_norm=(tensors["model.final_layernorm.weight"], tensors["model.final_layernorm.bias"]), head=embedding)


def oracle(config, tensors, ids):
    return None
