"""Gemma 3. transformers computes logits for all cases, with the softmax in float32.

Of the models for text and images, only the text model is tested. Its config is nested in text_config, and its tensor
names have one more part. Files with either spelling are served: "language_model.model." of transformers 4 and
"model.language_model." of transformers 5. The file also has the tensors for images, which do not affect the logits of
text.
"""

import math

import torch
import transformers

import reference_decoder as reference

BASE = dict(architectures=["Gemma3ForCausalLM"], vocab_size=64, hidden_size=64, intermediate_size=96,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=20,
            max_position_embeddings=256, rms_norm_eps=1e-6, query_pre_attn_scalar=16, rope_theta=1000000.0,
            rope_local_base_freq=10000.0, hidden_activation="gelu_pytorch_tanh", pad_token_id=0, bos_token_id=2,
            eos_token_id=1)
SLIDING, FULL = "sliding_attention", "full_attention"
CASES = {
    "gemma3": dict(BASE, layer_types=[SLIDING, FULL, SLIDING]),
    "gemma3_pattern": dict(BASE, num_hidden_layers=7, num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=24),
    "gemma3_scaled": dict(BASE, layer_types=[SLIDING, SLIDING, FULL], rope_scaling=dict(rope_type="linear", factor=8.0)),
    "gemma3_untied": dict(BASE, layer_types=[FULL, SLIDING, FULL], tie_word_embeddings=False, attention_bias=True,
                          rope_local_base_freq=5000.0),
}
TEXT = {key: value for key, value in BASE.items() if key not in ("architectures", "pad_token_id", "bos_token_id",
                                                                 "eos_token_id")}
# The form of google/gemma-3-4b-it's config, which leaves out the values that transformers' classes assume.
MULTIMODAL = dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", boi_token_index=60,
                  eoi_token_index=61, image_token_index=62, mm_tokens_per_image=4, eos_token_id=[1, 3])
VISION = dict(model_type="siglip_vision_model", hidden_size=16, intermediate_size=24, num_hidden_layers=1,
              num_attention_heads=2, image_size=8, patch_size=4, vision_use_head=False)
CASES |= {
    "gemma3_images": dict(MULTIMODAL, vision_config=VISION, text_config=dict(
        TEXT, model_type="gemma3_text", num_hidden_layers=7, rope_scaling=dict(rope_type="linear", factor=8.0))),
    "gemma3_images_new": dict(MULTIMODAL, vision_config=VISION, dtype="float32", tie_word_embeddings=True, text_config=dict(
        {key: value for key, value in TEXT.items() if not key.startswith("rope")}, model_type="gemma3_text",
        layer_types=[FULL, SLIDING, FULL], rope_parameters={
            FULL: dict(rope_type="linear", factor=2.0, rope_theta=1000000.0),
            SLIDING: dict(rope_type="default", rope_theta=5000.0)})),
}
IMAGE_TENSORS = {"vision_tower.vision_model.embeddings.patch_embedding.weight": [16, 3, 4, 4],
                 "vision_tower.vision_model.post_layernorm.bias": [16],
                 "multi_modal_projector.mm_input_projection_weight": [16, 64],
                 "multi_modal_projector.mm_soft_emb_norm.weight": [16]}
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


def prefixes(config):
    """Returns the prefixes of three kinds of names: the text model, its head, and the tensors for images."""
    if "text_config" not in config:
        return "", "", ""
    return ("model.language_model.", "", "model.") if "dtype" in config else ("language_model.model.", "language_model.", "")


def shapes(config):
    if "text_config" in config:
        text, _, images = prefixes(config)
        found = {text + name.removeprefix("model."): shape for name, shape in shapes(config["text_config"]).items()}
        return found | {images + name: shape for name, shape in IMAGE_TENSORS.items()}
    width, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    found = {"model.embed_tokens.weight": [config["vocab_size"], width]}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        found |= {f"{layer}{norm}.weight": [width] for norm in NORMS}
        found |= {f"{layer}self_attn.{name}_norm.weight": [dim] for name in "qk"}
        for name, rows, cols in (("q", q, width), ("k", kv, width), ("v", kv, width), ("o", width, q)):
            found[f"{layer}self_attn.{name}_proj.weight"] = [rows, cols]
            if config.get("attention_bias"):
                found[f"{layer}self_attn.{name}_proj.bias"] = [rows]
        for name, rows, cols in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
            found[f"{layer}mlp.{name}_proj.weight"] = [rows, cols]
    found["model.norm.weight"] = [width]
    if not config.get("tie_word_embeddings", True):
        found["lm_head.weight"] = [config["vocab_size"], width]
    return found


def text_half(config, tensors):
    """Returns the text model as a Gemma3ForCausalLM."""
    if "text_config" not in config:
        return config, tensors
    prefix = prefixes(config)[0]
    named = {"model." + name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return config["text_config"], named


def describe(config, tensors, _):
    config, tensors = text_half(config, tensors)
    dim = config["head_dim"]

    def frequencies(theta):
        return theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    by_type = config.get("rope_parameters", {})
    full = by_type.get(FULL, dict(config.get("rope_scaling", {}), rope_theta=config.get("rope_theta")))
    local_theta = by_type[SLIDING]["rope_theta"] if by_type else config["rope_local_base_freq"]
    has_qk_norm = "model.layers.0.self_attn.q_norm.weight" in tensors

    description = reference.Description(
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"], head_dim=dim,
        eps=config["rms_norm_eps"], rms_norm=True, activation="gelu_tanh_mul",
        embedding_scale=math.sqrt(config["hidden_size"]), scale=config["query_pre_attn_scalar"] ** -0.5,
        soft_cap=config.get("attn_logit_softcapping"), logit_soft_cap=config.get("final_logit_softcapping"),
        rope_frequencies=frequencies(full["rope_theta"]) / full.get("factor", 1.0))
    layers = []
    for i in range(config["num_hidden_layers"]):
        def weight(name, layer=f"model.layers.{i}."):
            return tensors[f"{layer}{name}.weight"]

        def norm(name, weight=weight):
            return 1 + weight(name), None

        types = config.get("layer_types")
        slides = types[i] == SLIDING if types else (i + 1) % config.get("sliding_window_pattern", 6) != 0
        biases = [tensors.get(f"model.layers.{i}.self_attn.{name}_proj.bias") for name in "qkvo"]
        layers.append(reference.Layer(
            attention_norm=norm("input_layernorm"), attention_post_norm=norm("post_attention_layernorm"),
            mlp_norm=norm("pre_feedforward_layernorm"), mlp_post_norm=norm("post_feedforward_layernorm"),
            q_norm=norm("self_attn.q_norm")[0] if has_qk_norm else None,
            k_norm=norm("self_attn.k_norm")[0] if has_qk_norm else None,
            qkv=torch.cat([weight(f"self_attn.{name}_proj") for name in "qkv"]), o=weight("self_attn.o_proj"),
            qkv_bias=None if biases[0] is None else torch.cat(biases[:3]), o_bias=biases[3],
            up=torch.cat([weight("mlp.gate_proj"), weight("mlp.up_proj")]), down=weight("mlp.down_proj"),
            window=config["sliding_window"] if slides else None,
            rope_frequencies=frequencies(local_theta) if slides else None))
    embedding = tensors["model.embed_tokens.weight"]
    return description, reference.Weights(embedding=embedding, layers=layers,
                                          final_norm=(1 + tensors["model.norm.weight"], None),
                                          head=tensors.get("lm_head.weight", embedding))


def model_for_images(config, tensors):
    """Returns transformers' whole model. Its part for images has transformers' own weights and is unused."""
    parts = {name: value for name, value in config.items() if name not in ("text_config", "vision_config")}
    model_config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**config["text_config"]), **parts,
        vision_config=transformers.SiglipVisionConfig(**config["vision_config"]))
    model_config._attn_implementation = model_config.text_config._attn_implementation = "eager"
    model = transformers.Gemma3ForConditionalGeneration(model_config).eval().double()
    _, named = text_half(config, tensors)
    named = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in named.items()}
    images = {name: tensor for name, tensor in model.state_dict().items()
              if name not in named and not name.startswith(("model.language_model.", "lm_head"))}
    return model, model.model.language_model, {
        "lm_head.weight": named["model.language_model.embed_tokens.weight"], **images, **named}


def model_for_text(config, tensors):
    model_config = transformers.Gemma3TextConfig(**config)
    model_config._attn_implementation = "eager"
    model = transformers.Gemma3ForCausalLM(model_config).eval().double()
    return model, model.model, {"lm_head.weight": tensors["model.embed_tokens.weight"], **tensors}


def oracle(config, tensors, ids):
    model, text, state = (model_for_images if "text_config" in config else model_for_text)(config, tensors)
    for norm in (m for m in model.modules() if type(m).__name__ == "Gemma3RMSNorm"):
        norm.forward = lambda x, norm=norm: norm._norm(x) * (1.0 + norm.weight)  # its own is in float32
    width = config.get("text_config", config)["hidden_size"]
    text.embed_tokens.embed_scale = torch.tensor(math.sqrt(width), dtype=torch.float64)
    model.load_state_dict(state)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
