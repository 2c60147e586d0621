"""BLOOM. transformers computes logits for all cases."""

import torch
import transformers

import reference_decoder as reference
from families import fused_qkv

BASE = dict(architectures=["BloomForCausalLM"], model_type="bloom", vocab_size=64, hidden_size=64, n_layer=2, n_head=4,
            layer_norm_epsilon=1e-5, seq_length=256)
CASES = {
    "bloom": BASE,
    "bloom_six_heads": dict(BASE, hidden_size=96, n_head=6),
    "bloom_untied": dict(BASE, tie_word_embeddings=False),
}
LAYER = {"attention_norm": "input_layernorm", "qkv": "self_attention.query_key_value", "o": "self_attention.dense",
         "mlp_norm": "post_attention_layernorm", "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"}


def shapes(config):
    width, vocab, heads = config["hidden_size"], config["vocab_size"], config["n_head"]
    found = {"transformer.word_embeddings.weight": [vocab, width]}
    found |= fused_qkv.shapes("transformer.h.", LAYER, config["n_layer"], width, 4 * width, heads, heads, biases=True)
    for norm in ("word_embeddings_layernorm", "ln_f"):
        found |= {f"transformer.{norm}.{kind}": [width] for kind in ("weight", "bias")}
    if not config.get("tie_word_embeddings", True):
        found["lm_head.weight"] = [vocab, width]
    return found


def describe(config, tensors, _):
    heads, width = config["n_head"], config["hidden_size"]
    description = reference.Description(heads=heads, kv_heads=heads, head_dim=width // heads, alibi_bias_max=8.0,
                                        eps=config["layer_norm_epsilon"], activation="gelu_tanh")

    def norm(name):
        return tensors[f"transformer.{name}.weight"], tensors[f"transformer.{name}.bias"]

    embedding = tensors["transformer.word_embeddings.weight"]
    return description, reference.Weights(
        embedding=embedding, embedding_norm=norm("word_embeddings_layernorm"), final_norm=norm("ln_f"),
        layers=[fused_qkv.layer(tensors, f"transformer.h.{i}.", LAYER, heads, heads) for i in range(config["n_layer"])],
        head=tensors.get("lm_head.weight", embedding))


def oracle(config, tensors, ids):
    model_config = transformers.BloomConfig(**config)
    model_config._attn_implementation = "eager"
    model = transformers.BloomForCausalLM(model_config).eval().double()
    model.load_state_dict({"lm_head.weight": tensors["transformer.word_embeddings.weight"], **tensors})
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
