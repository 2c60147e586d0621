"""BLOOM: transformers has all of it."""

import torch
import transformers

import reference_decoder as reference

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
    width, vocab = config["hidden_size"], config["vocab_size"]
    found = {"transformer.word_embeddings.weight": [vocab, width]}

    def add(name, *shape):
        found[f"{name}.weight"] = list(shape)
        found[f"{name}.bias"] = [shape[0]]

    add("transformer.word_embeddings_layernorm", width)
    for i in range(config["n_layer"]):
        rows = {"qkv": (3 * width, width), "o": (width, width), "up": (4 * width, width), "down": (width, 4 * width)}
        for part, name in LAYER.items():
            add(f"transformer.h.{i}.{name}", *rows.get(part, (width,)))
    add("transformer.ln_f", width)
    if not config.get("tie_word_embeddings", True):
        found["lm_head.weight"] = [vocab, width]
    return found


def stacked(config, tensor):
    """Rows head by head (q, k, v of each) to all of Q, all of K, all of V."""
    heads = config["n_head"]
    return tensor.view(heads, 3, tensor.shape[0] // heads // 3, -1).transpose(0, 1).reshape(tensor.shape)


def describe(config, tensors, _):
    heads, width = config["n_head"], config["hidden_size"]
    description = reference.Description(heads=heads, kv_heads=heads, head_dim=width // heads,
                                        eps=config["layer_norm_epsilon"], alibi_bias_max=8.0, activation="gelu_tanh")

    def both(name):
        return tensors[f"{name}.weight"], tensors[f"{name}.bias"]

    layers = []
    for i in range(config["n_layer"]):
        found = {part: both(f"transformer.h.{i}.{name}") for part, name in LAYER.items()}
        found["qkv"] = tuple(stacked(config, tensor) for tensor in found["qkv"])
        parts = {}
        for part, (weight, bias) in found.items():
            parts.update({part: (weight, bias)} if part.endswith("norm") else {part: weight, f"{part}_bias": bias})
        layers.append(reference.Layer(**parts))
    embedding = tensors["transformer.word_embeddings.weight"]
    return description, reference.Weights(
        embedding=embedding, embedding_norm=both("transformer.word_embeddings_layernorm"), layers=layers,
        final_norm=both("transformer.ln_f"), head=tensors.get("lm_head.weight", embedding))


def oracle(config, tensors, ids):
    model_config = transformers.BloomConfig(**config)
    model_config._attn_implementation = "eager"
    model = transformers.BloomForCausalLM(model_config).eval().double()
    model.load_state_dict({"lm_head.weight": tensors["transformer.word_embeddings.weight"], **tensors})
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
