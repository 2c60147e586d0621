"""The families that resemble Llama:

- Mixtral and Qwen 3's mixtures of experts
- Mistral with its window
- Phi-3 (fused projections)
- Qwen 2 (biases on queries, keys and values)
- Qwen 3 (each head of queries and keys is normalized)
- SmolLM3 (some layers do not rotate queries and keys)
- Llamas with RoPE scaling

transformers computes logits for all of them. Its dynamic scaling and its choice of LongRoPE factors depend on the length
of the current prompt. Quire's depend on the served context length. The layers of a mixture that have no experts are
intermediate_size wide.
"""

import math

import torch
import transformers

import reference_decoder as reference

BASE = dict(vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-6, rope_theta=10000.0,
            tie_word_embeddings=False)
QWEN2 = dict(BASE, architectures=["Qwen2ForCausalLM"], hidden_size=64)
QWEN3 = dict(BASE, architectures=["Qwen3ForCausalLM"], head_dim=16)
LLAMA = dict(BASE, architectures=["LlamaForCausalLM"], head_dim=16, max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=8.0)
PHI3 = dict(BASE, architectures=["Phi3ForCausalLM"], hidden_size=64, pad_token_id=0)
MIXTRAL = dict(BASE, architectures=["MixtralForCausalLM"], hidden_size=64, num_local_experts=4, num_experts_per_tok=2,
               rope_theta=1000000.0)
QWEN3_MOE = dict(BASE, architectures=["Qwen3MoeForCausalLM"], head_dim=16, num_experts=6, num_experts_per_tok=2,
                 moe_intermediate_size=40)
# LongRoPE divides the frequency of each pair of dimensions by a factor: short_factor up to the trained
# context, long_factor beyond it. Both come with the same multiplier of cosines and sines, which follows from
# max_position_embeddings / original_max_position_embeddings.
LONGROPE = dict(type="longrope", short_factor=[1.0, 1.04, 1.1, 1.3, 1.7, 2.2, 2.6, 3.0],
                long_factor=[1.08, 1.3, 2.6, 5.5, 11.0, 19.0, 33.5, 61.0])
PARTIAL = dict(type="longrope", short_factor=[1.0, 1.2, 1.1, 1.0, 1.5, 1.0],
               long_factor=[1.0, 1.118, 2.25, 8.3, 24.75, 47.7])
SMOLLM3 = dict(BASE, architectures=["SmolLM3ForCausalLM"], hidden_size=64, rope_theta=2000000.0, num_hidden_layers=5,
               tie_word_embeddings=True, pad_token_id=0)
CASES = {
    "rope_yarn": dict(LLAMA, rope_scaling=dict(YARN, original_max_position_embeddings=32), max_position_embeddings=256),
    "rope_yarn_mscale": dict(LLAMA, rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=0.5, truncate=False)),
    "rope_yarn_betas": dict(LLAMA, rope_scaling=dict(YARN, beta_fast=4.0, beta_slow=0.5, attention_factor=1.25)),
    "rope_dynamic": dict(LLAMA, rope_scaling=dict(rope_type="dynamic", factor=2.0)),
    "mistral_window": dict(LLAMA, architectures=["MistralForCausalLM"], max_position_embeddings=256, sliding_window=20),
    "mixtral": MIXTRAL,
    "mixtral_window": dict(MIXTRAL, num_local_experts=8, num_experts_per_tok=3, sliding_window=20),
    "mixtral_one_of_three": dict(MIXTRAL, num_local_experts=3, num_experts_per_tok=1, tie_word_embeddings=True),
    "qwen3_moe": QWEN3_MOE,
    "qwen3_moe_normed": dict(QWEN3_MOE, norm_topk_prob=True, num_experts_per_tok=3, attention_bias=True),
    "qwen3_moe_dense": dict(QWEN3_MOE, num_hidden_layers=3, intermediate_size=72, mlp_only_layers=[1]),
    "qwen3_moe_step": dict(QWEN3_MOE, num_hidden_layers=4, intermediate_size=24, decoder_sparse_step=2,
                           mlp_only_layers=[3], norm_topk_prob=True, tie_word_embeddings=True),
    "phi3": dict(PHI3, num_key_value_heads=4, sliding_window=None),
    "phi3_window": dict(PHI3, sliding_window=33),
    "phi3_longrope": dict(PHI3, rope_scaling=LONGROPE, original_max_position_embeddings=32, sliding_window=262144),
    "phi3_longrope_within": dict(PHI3, num_key_value_heads=4, rope_scaling=LONGROPE, max_position_embeddings=1024,
                                 original_max_position_embeddings=256),
    "phi4_longrope": dict(PHI3, rope_scaling=PARTIAL, original_max_position_embeddings=64, partial_rotary_factor=0.75,
                          tie_word_embeddings=True, num_hidden_layers=3),
    "smollm3": SMOLLM3,
    "smollm3_windows": dict(SMOLLM3, num_hidden_layers=3, no_rope_layers=[1, 0, 1], use_sliding_window=True,
                            sliding_window=20, num_key_value_heads=1),
    "smollm3_biases": dict(SMOLLM3, num_hidden_layers=4, no_rope_layer_interval=2, use_sliding_window=True,
                           sliding_window=33, attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
                           layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"]),
    "qwen2": QWEN2,
    "qwen2_tied": dict(QWEN2, tie_word_embeddings=True, use_sliding_window=False, sliding_window=32),
    "qwen2_windows": dict(QWEN2, num_hidden_layers=3, use_sliding_window=True, sliding_window=20, max_window_layers=1),
    "qwen3": QWEN3,
    "qwen3_windows": dict(QWEN3, num_hidden_layers=3, use_sliding_window=True, sliding_window=33,
                          layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "qwen3_biases": dict(QWEN3, attention_bias=True, rope_theta=1000000.0),
    "qwen3_wide": dict(QWEN3, num_attention_heads=6, num_key_value_heads=3, head_dim=32, tie_word_embeddings=True),
}


def is_a(config, name):
    return config["architectures"] == [f"{name}ForCausalLM"]


def window_of(config, layer):
    if any(is_a(config, name) for name in ("Mistral", "Mixtral", "Phi3")):
        return config.get("sliding_window")
    if "layer_types" in config:
        slides = config["layer_types"][layer] == "sliding_attention"
    elif is_a(config, "SmolLM3"):
        slides = not turns(config, layer)
    else:
        slides = layer >= config.get("max_window_layers", 28)
    return config["sliding_window"] if config.get("use_sliding_window") and slides else None


def turns(config, layer):
    """Returns whether the layer has rotary positions."""
    if not is_a(config, "SmolLM3"):
        return True
    if "no_rope_layers" in config:
        return bool(config["no_rope_layers"][layer])
    return (layer + 1) % config.get("no_rope_layer_interval", 4) != 0


def head_dim_of(config):
    return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])


def expert_names(config):
    """Returns the names of the router, and of the gate, up and down projections of an expert."""
    if is_a(config, "Mixtral"):
        return "block_sparse_moe.gate", *(f"block_sparse_moe.experts.{{}}.{w}" for w in ("w1", "w3", "w2"))
    return "mlp.gate", *(f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down"))


def num_experts_of(config):
    return config.get("num_local_experts", config.get("num_experts", 0))


def has_experts(config, layer):
    step = config.get("decoder_sparse_step", 1)
    return num_experts_of(config) and layer not in config.get("mlp_only_layers", []) and (layer + 1) % step == 0


def feed_forward_shapes(config, i):
    layer = f"model.layers.{i}."
    width, inner = config["hidden_size"], config["intermediate_size"]
    if is_a(config, "Phi3"):
        names = {"mlp.gate_up_proj": [2 * inner, width], "mlp.down_proj": [width, inner]}
    elif has_experts(config, i):
        inner = config.get("moe_intermediate_size", inner)
        router, gate, up, down = expert_names(config)
        names = {router: [num_experts_of(config), width]}
        for i in range(num_experts_of(config)):
            names |= {gate.format(i): [inner, width], up.format(i): [inner, width], down.format(i): [width, inner]}
    else:
        names = {"mlp.gate_proj": [inner, width], "mlp.up_proj": [inner, width], "mlp.down_proj": [width, inner]}
    found = {f"{layer}{name}.weight": shape for name, shape in names.items()}
    if config.get("mlp_bias"):
        found |= {f"{layer}{name}.bias": shape[:1] for name, shape in names.items()}
    return found


def shapes(config):
    width, dim = config["hidden_size"], head_dim_of(config)
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    found = {"model.embed_tokens.weight": [config["vocab_size"], width]}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        found[layer + "input_layernorm.weight"] = [width]
        found[layer + "self_attn.o_proj.weight"] = [width, q]
        found[layer + "post_attention_layernorm.weight"] = [width]
        found |= feed_forward_shapes(config, i)
        if is_a(config, "Phi3"):
            found[layer + "self_attn.qkv_proj.weight"] = [q + 2 * kv, width]
            continue
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            found[f"{layer}self_attn.{name}_proj.weight"] = [rows, width]
            if is_a(config, "Qwen2") or config.get("attention_bias"):
                found[f"{layer}self_attn.{name}_proj.bias"] = [rows]
            if config["architectures"][0].startswith("Qwen3") and name != "v":
                found[f"{layer}self_attn.{name}_norm.weight"] = [dim]
        if config.get("attention_bias"):
            found[layer + "self_attn.o_proj.bias"] = [width]
    found["model.norm.weight"] = [width]
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = [config["vocab_size"], width]
    return found


def rotary(config, context):
    """Returns the frequencies of the pairs of dimensions, and the factor of cosines and sines."""
    dim, theta = int(head_dim_of(config) * config.get("partial_rotary_factor", 1.0)), config["rope_theta"]
    scaling = config.get("rope_scaling", {})
    trained = scaling.get("original_max_position_embeddings",
                          config.get("original_max_position_embeddings", config["max_position_embeddings"]))
    factor = scaling.get("factor")
    if scaling.get("rope_type") == "dynamic":
        theta *= (factor * max(1.0, context / trained) - (factor - 1)) ** (dim / (dim - 2))
    frequencies = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if scaling.get("rope_type") == "llama3":  # arXiv:2407.21783
        turns_in_context = trained * frequencies / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = ((turns_in_context - low) / (high - low)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / factor), 1.0
    if scaling.get("type") == "longrope":  # arXiv:2402.13753
        stretch = config["max_position_embeddings"] / trained
        divisors = torch.tensor(scaling["long_factor" if context > trained else "short_factor"], dtype=torch.float64)
        return frequencies / divisors, math.sqrt(1 + math.log(stretch) / math.log(trained)) if stretch > 1 else 1.0
    if scaling.get("rope_type") != "yarn":
        return frequencies, 1.0
    # YaRN (arXiv:2309.00071): frequencies of many turns stay, and those of few turns are divided by `factor`.
    # Between them, a linear ramp over the dimensions blends the two.
    ends = [dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (scaling.get("beta_fast", 32.0), scaling.get("beta_slow", 1.0))]
    if scaling.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], dim - 1)
    divided = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)

    def mscale(m):
        return 0.1 * m * math.log(factor) + 1

    usual = mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"]) if "mscale" in scaling else mscale(1)
    return frequencies * (divided / factor + 1 - divided), scaling.get("attention_factor", usual)


def feed_forward(config, i, named, fused):
    if not has_experts(config, i):
        biases = [named(f"mlp.{part}_proj.bias") for part in ("gate", "up", "down")]
        return dict(up=fused("mlp.gate_up_proj", "mlp.gate_proj", "mlp.up_proj"), down=named("mlp.down_proj.weight"),
                    up_bias=None if biases[0] is None else torch.cat(biases[:2]), down_bias=biases[2])
    router, *experts = expert_names(config)
    gate, up, down = (torch.stack([named(f"{name.format(i)}.weight") for i in range(num_experts_of(config))])
                      for name in experts)
    return dict(router=named(f"{router}.weight"), up=torch.cat([gate, up], dim=1), down=down)


def fused_experts(config, tensors):
    """Returns the experts as transformers stores them in memory."""
    if not num_experts_of(config):
        return tensors
    rest = {key: value for key, value in tensors.items() if "block_sparse_moe" not in key and ".mlp.gate." not in key
            and ".experts." not in key}
    for i in range(config["num_hidden_layers"]):
        if not has_experts(config, i):
            continue
        layer = f"model.layers.{i}."
        parts = feed_forward(config, i, lambda name, layer=layer: tensors[layer + name], None)
        rest |= {layer + "mlp.gate.weight": parts["router"], layer + "mlp.experts.gate_up_proj": parts["up"],
                 layer + "mlp.experts.down_proj": parts["down"]}
    return rest


def describe(config, tensors, context):
    frequencies, attention_factor = rotary(config, context)
    description = reference.Description(
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"], head_dim=head_dim_of(config),
        eps=config["rms_norm_eps"], experts_per_token=config.get("num_experts_per_tok", 0),
        norm_topk_prob=config.get("norm_topk_prob", is_a(config, "Mixtral")), rope_frequencies=frequencies,
        rope_factor=attention_factor, rms_norm=True, activation="silu_mul")
    layers = []
    for i in range(config["num_hidden_layers"]):
        def named(name, layer=f"model.layers.{i}."):
            return tensors.get(layer + name)

        def fused(name, *parts, named=named):
            return named(f"{name}.weight") if is_a(config, "Phi3") else torch.cat([named(f"{p}.weight") for p in parts])

        biases = [named(f"self_attn.{name}_proj.bias") for name in "qkv"]
        layers.append(reference.Layer(
            attention_norm=(named("input_layernorm.weight"), None),
            mlp_norm=(named("post_attention_layernorm.weight"), None),
            qkv=fused("self_attn.qkv_proj", *(f"self_attn.{name}_proj" for name in "qkv")),
            qkv_bias=None if biases[0] is None else torch.cat(biases),
            o=named("self_attn.o_proj.weight"), o_bias=named("self_attn.o_proj.bias"),
            window=window_of(config, i),
            q_norm=named("self_attn.q_norm.weight"), k_norm=named("self_attn.k_norm.weight"),
            rope_frequencies=None if turns(config, i) else torch.empty(0, dtype=torch.float64),
            **feed_forward(config, i, named, fused)))
    embedding = tensors["model.embed_tokens.weight"]
    return description, reference.Weights(embedding=embedding, layers=layers,
                                          final_norm=(tensors["model.norm.weight"], None),
                                          head=tensors.get("lm_head.weight", embedding))


def oracle(config, tensors, ids):
    kind = config["architectures"][0].removesuffix("ForCausalLM")
    model_config = getattr(transformers, f"{kind}Config")(**config)
    model_config._attn_implementation = "eager"
    model_config._experts_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(model_config).eval().double()
    model.load_state_dict({"lm_head.weight": tensors["model.embed_tokens.weight"], **fused_experts(config, tensors)})
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
