"""Baichuan, whose code is published with its weights and not in transformers.

With rotary positions, it is a Llama with one fused projection, so its logits are compared with those of transformers'
Llama. With ALiBi, only the reference computes its logits.
"""

from families import llama_like

BASE = dict(architectures=["BaichuanForCausalLM"], vocab_size=64, hidden_size=96, intermediate_size=80,
            num_hidden_layers=2, num_attention_heads=6, rms_norm_eps=1e-6, tie_word_embeddings=False)
CASES = {
    "baichuan": dict(BASE, model_max_length=256),
    "baichuan_rope": dict(BASE, architectures=["BaiChuanForCausalLM"], num_attention_heads=4,
                          max_position_embeddings=256),
}


def llama(config):
    return dict(config, architectures=["LlamaForCausalLM"], num_key_value_heads=config["num_attention_heads"],
                rope_theta=10000.0, max_position_embeddings=256)


def shapes(config):
    width, found = config["hidden_size"], {}
    for name, shape in llama_like.shapes(llama(config)).items():
        if ".q_proj" in name:
            found[name.replace("q_proj", "W_pack")] = [3 * width, width]
        elif ".k_proj" not in name and ".v_proj" not in name:
            found[name] = shape
    return found


def split(tensors):
    parts = {}
    for name, tensor in tensors.items():
        if "W_pack" in name:
            parts |= {name.replace("W_pack", f"{part}_proj"): rows for part, rows in zip("qkv", tensor.chunk(3))}
        else:
            parts[name] = tensor
    return parts


def describe(config, tensors, context):
    description, weights = llama_like.describe(llama(config), split(tensors), context)
    if "max_position_embeddings" not in config:
        description.rope_frequencies, description.alibi_bias_max = None, 8.0
    return description, weights


def oracle(config, tensors, ids):
    return llama_like.oracle(llama(config), split(tensors), ids) if "max_position_embeddings" in config else None
