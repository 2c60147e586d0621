"""MPT.

transformers has no grouped keys, so its model gets repeated K and V rows. It ignores alibi_bias_max, so only the cases
with 8 are compared with it. It has no qk_ln and no biases, and its expansion is always 4.
"""

import torch
import transformers

import reference_decoder as reference

BASE = dict(architectures=["MPTForCausalLM"], vocab_size=64, d_model=64, n_heads=4, n_layers=2, expansion_ratio=4,
           max_seq_len=256, no_bias=True, norm_type="low_precision_layernorm", layer_norm_epsilon=1e-5)
ATTENTION = dict(attn_type="multihead_attention", alibi=True, alibi_bias_max=8)
GROUPED = dict(attn_type="grouped_query_attention")
CASES = {
    "mpt": dict(BASE, attn_config=ATTENTION),
    "mpt_biases": dict(BASE, no_bias=False, attn_config=ATTENTION),
    "mpt_clip": dict(BASE, attn_config=dict(ATTENTION, clip_qkv=0.75)),
    "mpt_scale": dict(BASE, attn_config=dict(ATTENTION, softmax_scale=0.125)),
    "mpt_six_heads": dict(BASE, d_model=96, n_heads=6, attn_config=ATTENTION),
    "mpt_gqa": dict(BASE, d_model=96, n_heads=6, attn_config=dict(ATTENTION, **GROUPED, kv_n_heads=2)),
    "mpt_mqa": dict(BASE, attn_config=dict(ATTENTION, attn_type="multiquery_attention")),
    "mpt_bias_max": dict(BASE, d_model=96, n_heads=6, attn_config=dict(ATTENTION, **GROUPED, kv_n_heads=3, alibi_bias_max=16)),
    "mpt_qk_ln": dict(BASE, attn_config=dict(ATTENTION, **GROUPED, kv_n_heads=2, qk_ln=True)),
    "mpt_untied": dict(BASE, tie_word_embeddings=False, expansion_ratio=2, attn_config=ATTENTION),
}


def kv_heads_of(config):
    attention = config["attn_config"]
    return {"multihead_attention": config["n_heads"], "multiquery_attention": 1}.get(attention["attn_type"],
                                                                                    attention.get("kv_n_heads"))


def shapes(config):
    width, vocab = config["d_model"], config["vocab_size"]
    inner, kv = width * config["expansion_ratio"], kv_heads_of(config) * (width // config["n_heads"])
    found = {"transformer.wte.weight": [vocab, width]}

    def add(name, *shape):
        found[f"{name}.weight"] = list(shape)
        if not config["no_bias"]:
            found[f"{name}.bias"] = [shape[0]]

    for i in range(config["n_layers"]):
        block = f"transformer.blocks.{i}."
        add(block + "norm_1", width)
        add(block + "attn.Wqkv", width + 2 * kv, width)
        if config["attn_config"].get("qk_ln"):
            add(block + "attn.q_ln", width)
            add(block + "attn.k_ln", kv)
        add(block + "attn.out_proj", width, width)
        add(block + "norm_2", width)
        add(block + "ffn.up_proj", inner, width)
        add(block + "ffn.down_proj", width, inner)
    add("transformer.norm_f", width)
    if not config.get("tie_word_embeddings", True):
        found["lm_head.weight"] = [vocab, width]
    return found


def describe(config, tensors, _):
    attention = config["attn_config"]
    description = reference.Description(
        heads=config["n_heads"], kv_heads=kv_heads_of(config), head_dim=config["d_model"] // config["n_heads"],
        eps=config["layer_norm_epsilon"], alibi_bias_max=attention["alibi_bias_max"],
        clip=attention.get("clip_qkv"), scale=attention.get("softmax_scale"))

    def norm(name):
        return tensors[f"{name}.weight"], tensors.get(f"{name}.bias")

    layers = []
    for i in range(config["n_layers"]):
        block = f"transformer.blocks.{i}."
        layers.append(reference.Layer(
            attention_norm=norm(block + "norm_1"), mlp_norm=norm(block + "norm_2"),
            q_norm=tensors.get(block + "attn.q_ln.weight"), k_norm=tensors.get(block + "attn.k_ln.weight"),
            **{key + suffix: tensors.get(f"{block}{name}.{kind}")
               for key, name in (("qkv", "attn.Wqkv"), ("o", "attn.out_proj"), ("up", "ffn.up_proj"),
                                 ("down", "ffn.down_proj"))
               for suffix, kind in (("", "weight"), ("_bias", "bias"))}))
    embedding = tensors["transformer.wte.weight"]
    return description, reference.Weights(embedding=embedding, layers=layers, final_norm=norm("transformer.norm_f"),
                                          head=tensors.get("lm_head.weight", embedding))


def oracle(config, tensors, ids):
    """Returns transformers' logits in float64, or None for features that it does not have."""
    attention = config["attn_config"]
    if attention.get("qk_ln") or attention["alibi_bias_max"] != 8 or not config["no_bias"] \
            or config["expansion_ratio"] != 4:
        return None
    heads, kv_heads, width = config["n_heads"], kv_heads_of(config), config["d_model"]
    plain = dict(attention, attn_type="multihead_attention")
    plain.pop("kv_n_heads", None)
    model_config = transformers.MptConfig(**{**config, "attn_config": plain})
    model_config._attn_implementation = "eager"
    model = transformers.MptForCausalLM(model_config).eval().double()
    state = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("Wqkv.weight"):
            dim = width // heads
            q, k, v = tensor.split([width, kv_heads * dim, kv_heads * dim])
            k, v = (t.view(kv_heads, dim, width).repeat_interleave(heads // kv_heads, 0).reshape(width, width)
                    for t in (k, v))
            state[name] = torch.cat([q, k, v])
    state.setdefault("lm_head.weight", state["transformer.wte.weight"])
    model.load_state_dict(state)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
