#pragma once

// The names of a decoder's tensors in the files of an architecture.

#include <array>

namespace quire::engine {

// The rows of a fused projection of queries, keys and values.
enum class QkvLayout {
  kStacked,  // Q of all heads, then K, then V
  kGrouped,  // for each KV head: its query heads, its keys, its values
};

// The tensors of a mixture of experts: whole names after the layer's prefix. '#' is an expert's
// number; a tensor without '#' holds a matrix for each expert.
struct MixtureNames {
  const char* router = nullptr;
  const char* gate = nullptr;  // null: the first rows of `up`
  const char *up = nullptr, *down = nullptr;
};

// Names without the ".weight" or ".bias" that follows. Null: these models have no such tensor.
struct TensorNames {
  // Comes before every name but the head's; files of a model without its head leave it out.
  const char* prefix = "";
  const char* embedding = nullptr;
  const char* embedding_norm = nullptr;
  const char* position_embedding = nullptr;
  const char* final_norm = nullptr;
  const char* head = nullptr;          // required unless it is tied to the embedding
  const char* layer_prefix = nullptr;  // of the names below; a number and a dot follow it
  bool layers_are_transposed = false;  // their matrices are stored as [cols, rows]
  const char* attention_norm = nullptr;
  const char *q = nullptr, *k = nullptr, *v = nullptr;
  const char* kv = nullptr;   // instead of the last two: K, then V
  const char* qkv = nullptr;  // instead of the three
  QkvLayout qkv_layout = QkvLayout::kStacked;
  const char *q_norm = nullptr, *k_norm = nullptr;
  const char* o = nullptr;
  const char* mlp_norm = nullptr;  // null if attention's norm is for both
  // Norms after attention and feed-forward, before the residual addition.
  const char *attention_post_norm = nullptr, *mlp_post_norm = nullptr;
  // If a gated network has no name for the gate, the gate is the first rows of `up`.
  const char *gate = nullptr, *up = nullptr, *down = nullptr;
  // Instead of those three, under any of these names.
  std::array<MixtureNames, 2> mixtures;
};

}  // namespace quire::engine
