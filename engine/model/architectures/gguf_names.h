#pragma once

// The tensor names of llama.cpp (constants.py of gguf-py). A tensor has the same name in every
// architecture that has it.

#include "engine/model/tensor_names.h"

namespace quire::engine {

// The names of a Llama.
inline constexpr TensorNames kGgufNames = {.embedding = "token_embd",
                                           .final_norm = "output_norm",
                                           .head = "output",
                                           .layer_prefix = "blk.",
                                           .attention_norm = "attn_norm",
                                           .q = "attn_q",
                                           .k = "attn_k",
                                           .v = "attn_v",
                                           .o = "attn_output",
                                           .mlp_norm = "ffn_norm",
                                           .gate = "ffn_gate",
                                           .up = "ffn_up",
                                           .down = "ffn_down"};

// The names of a mixture in which each tensor but the router holds the matrices of all experts.
inline constexpr MixtureNames kGgufStackedExperts = {.router = "ffn_gate_inp.weight",
                                                     .gate = "ffn_gate_exps.weight",
                                                     .up = "ffn_up_exps.weight",
                                                     .down = "ffn_down_exps.weight"};

// Returns the names for models with one fused projection of queries, keys and values, and without a
// gate in the feed-forward network.
constexpr TensorNames FusedGgufNames() {
  TensorNames names = kGgufNames;
  names.qkv = "attn_qkv";
  names.gate = nullptr;
  return names;
}

// Adds the names of the norms of queries and keys.
constexpr TensorNames WithGgufQkNorms(TensorNames names) {
  names.q_norm = "attn_q_norm";
  names.k_norm = "attn_k_norm";
  return names;
}

}  // namespace quire::engine
