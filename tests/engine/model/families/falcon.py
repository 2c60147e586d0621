"""Falcon. transformers' eager attention adds the ALiBi bias twice, so transformers runs with its other attention."""

import torch
import transformers

import reference_decoder as reference
from families import fused_qkv

BASE = dict(architectures=["FalconForCausalLM"], model_type="falcon", vocab_size=64, hidden_size=64, num_hidden_layers=2,
            num_attention_heads=4, layer_norm_epsilon=1e-5, bias=False, alibi=False, multi_query=True, parallel_attn=True,
            new_decoder_architecture=False, rope_theta=10000.0, max_position_embeddings=256)
RW = dict(BASE, alibi=True, multi_query=False, parallel_attn=False, bias=True)
GROUPED = dict(BASE, new_decoder_architecture=True, num_kv_heads=2)
CASES = {
    "falcon_rw": RW,
    "falcon_rw_six_heads": dict(RW, hidden_size=96, num_attention_heads=6),
    "falcon_7b": BASE,
    "falcon_7b_biases": dict(BASE, bias=True, ffn_hidden_size=80, tie_word_embeddings=False),
    "falcon_40b": GROUPED,
    "falcon_11b": dict(GROUPED, num_ln_in_parallel_attn=1, num_attention_heads=8, rope_theta=500000.0),
}
LINEAR = {"qkv": "self_attention.query_key_value", "o": "self_attention.dense", "up": "mlp.dense_h_to_4h",
          "down": "mlp.dense_4h_to_h"}


def names(config):
    if not config["parallel_attn"]:
        norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    elif config["new_decoder_architecture"] and config.get("num_ln_in_parallel_attn", 2) == 2:
        norms = {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}
    else:
        norms = {"attention_norm": "input_layernorm"}
    return norms | LINEAR


def kv_heads_of(config):
    heads = config["num_attention_heads"]
    return config["num_kv_heads"] if config["new_decoder_architecture"] else 1 if config["multi_query"] else heads


def shapes(config):
    width, vocab = config["hidden_size"], config["vocab_size"]
    found = {"transformer.word_embeddings.weight": [vocab, width]}
    found |= fused_qkv.shapes("transformer.h.", names(config), config["num_hidden_layers"], width,
                              config.get("ffn_hidden_size", 4 * width), config["num_attention_heads"], kv_heads_of(config),
                              config["bias"])
    found |= {f"transformer.ln_f.{kind}": [width] for kind in ("weight", "bias")}
    if not config.get("tie_word_embeddings", True):
        found["lm_head.weight"] = [vocab, width]
    return found


def describe(config, tensors, _):
    heads, kv_heads = config["num_attention_heads"], kv_heads_of(config)
    dim = config["hidden_size"] // heads
    positions = dict(alibi_bias_max=8.0, alibi_is_rounded=True)
    if not config["alibi"]:
        positions = dict(rope_frequencies=config["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    description = reference.Description(heads=heads, kv_heads=kv_heads, head_dim=dim, eps=config["layer_norm_epsilon"],
                                        parallel=config["parallel_attn"], **positions)
    embedding = tensors["transformer.word_embeddings.weight"]
    return description, reference.Weights(
        embedding=embedding,
        layers=[fused_qkv.layer(tensors, f"transformer.h.{i}.", names(config), heads, kv_heads)
                for i in range(config["num_hidden_layers"])],
        final_norm=(tensors["transformer.ln_f.weight"], tensors["transformer.ln_f.bias"]),
        head=tensors.get("lm_head.weight", embedding))


def oracle(config, tensors, ids):
    model_config = transformers.FalconConfig(**config)
    model_config._attn_implementation = "sdpa"
    model = transformers.FalconForCausalLM(model_config).eval().double()
    model.load_state_dict({"lm_head.weight": tensors["transformer.word_embeddings.weight"], **tensors})
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
