"""Gemma 2. transformers computes logits for all cases, with the softmax in float32.

Scores are scaled, then capped, then masked. Logits are capped after the head. Norm weights are 1 plus the values of the
file, and the product is in float32. The embedding is scaled by sqrt(hidden_size), which transformers rounds to the
dtype of the weights. Without layer_types, even layers have the window. All layers have the same rotary positions.
"""

import math

import torch
import transformers

from families import gemma3

FULL, SLIDING = gemma3.FULL, gemma3.SLIDING
BASE = dict(architectures=["Gemma2ForCausalLM"], vocab_size=64, hidden_size=64, intermediate_size=96,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=20,
            max_position_embeddings=256, rms_norm_eps=1e-6, query_pre_attn_scalar=16, rope_theta=10000.0,
            hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
            pad_token_id=0, bos_token_id=2, eos_token_id=1)
CASES = {
    "gemma2": BASE,
    "gemma2_low_caps": dict(BASE, num_hidden_layers=4, num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=24,
                            attn_logit_softcapping=5.0, final_logit_softcapping=9.0),
    "gemma2_cap_of_scores": dict(BASE, attn_logit_softcapping=8.0, final_logit_softcapping=None,
                                 layer_types=[FULL, SLIDING, FULL], tie_word_embeddings=False),
    "gemma2_cap_of_logits": dict(BASE, num_hidden_layers=2, attn_logit_softcapping=None, final_logit_softcapping=12.0,
                                 attention_bias=True, rope_theta=5000.0),
}


def shapes(config):
    return {name: shape for name, shape in gemma3.shapes(config).items() if "q_norm" not in name and "k_norm" not in name}


def describe(config, tensors, context):
    return gemma3.describe(dict(config, rope_local_base_freq=config["rope_theta"], sliding_window_pattern=2), tensors,
                           context)


def oracle(config, tensors, ids):
    model_config = transformers.Gemma2Config(**config)
    model_config._attn_implementation = "eager"
    model = transformers.Gemma2ForCausalLM(model_config).eval().double()
    for norm in (m for m in model.modules() if type(m).__name__ == "Gemma2RMSNorm"):
        norm.forward = lambda x, norm=norm: norm._norm(x) * (1.0 + norm.weight)  # its own is in float32
    model.model.embed_tokens.embed_scale = torch.tensor(math.sqrt(config["hidden_size"]), dtype=torch.float64)
    model.load_state_dict({"lm_head.weight": tensors["model.embed_tokens.weight"], **tensors})
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]
