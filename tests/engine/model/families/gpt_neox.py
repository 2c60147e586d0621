"""GPT-NeoX. transformers computes logits for all cases."""

import torch
import transformers

import reference_decoder as reference
from families import fused_qkv

BASE = dict(architectures=["GPTNeoXForCausalLM"], model_type="gpt_neox", vocab_size=64, hidden_size=64,
            intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=256, rotary_pct=0.25,
            rotary_emb_base=10000, layer_norm_eps=1e-5, hidden_act="gelu", use_parallel_residual=True,
            tie_word_embeddings=False)
CASES = {
    "neox": BASE,
    "neox_serial": dict(BASE, use_parallel_residual=False, hidden_act="gelu_new"),
    "neox_whole_heads": dict(BASE, rotary_pct=1.0, rotary_emb_base=100000, tie_word_embeddings=True),
    "neox_no_bias": dict(BASE, attention_bias=False),
}
LAYER = {"attention_norm": "input_layernorm", "qkv": "attention.query_key_value", "o": "attention.dense",
         "mlp_norm": "post_attention_layernorm", "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"}


def shapes(config):
    width, vocab, heads = config["hidden_size"], config["vocab_size"], config["num_attention_heads"]
    found = {"gpt_neox.embed_in.weight": [vocab, width]}
    found |= fused_qkv.shapes("gpt_neox.layers.", LAYER, config["num_hidden_layers"], width, config["intermediate_size"],
                              heads, heads, biases=True)
    if not config.get("attention_bias", True):
        found = {name: shape for name, shape in found.items() if ".attention." not in name or name.endswith("weight")}
    found |= {f"gpt_neox.final_layer_norm.{kind}": [width] for kind in ("weight", "bias")}
    if not config["tie_word_embeddings"]:
        found["embed_out.weight"] = [vocab, width]
    return found


def describe(config, tensors, _):
    heads = config["num_attention_heads"]
    dim = config["hidden_size"] // heads
    turned = int(dim * config["rotary_pct"])
    frequencies = config["rotary_emb_base"] ** -(torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    description = reference.Description(
        heads=heads, kv_heads=heads, head_dim=dim, eps=config["layer_norm_eps"], rope_frequencies=frequencies,
        parallel=config["use_parallel_residual"], activation="gelu" if config["hidden_act"] == "gelu" else "gelu_tanh")
    embedding = tensors["gpt_neox.embed_in.weight"]
    return description, reference.Weights(
        embedding=embedding,
        layers=[fused_qkv.layer(tensors, f"gpt_neox.layers.{i}.", LAYER, heads, heads)
                for i in range(config["num_hidden_layers"])],
        final_norm=(tensors["gpt_neox.final_layer_norm.weight"], tensors["gpt_neox.final_layer_norm.bias"]),
        head=tensors.get("embed_out.weight", embedding))


def oracle(config, tensors, ids):
    model_config = transformers.GPTNeoXConfig(**config)
    model_config._attn_implementation = "eager"
    model = transformers.GPTNeoXForCausalLM(model_config).eval().double()
    state = dict(tensors)  # files say embed_out, its module says lm_head since transformers 5
    state["lm_head.weight"] = state.pop("embed_out.weight", tensors["gpt_neox.embed_in.weight"])
    model.load_state_dict(state)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
