#pragma once

// How an architecture's files name the tensors of a decoder.

#include <array>

namespace quire::engine {

// The rows of a fused projection of queries, keys and values.
enum class QkvLayout {
  kStacked,  // Q of all heads, then K, then V
  kGrouped,  // for each KV head: its query heads, its keys, its values
};

// Where a mixture of experts is, whole names after the layer's. '#' is an expert's number; a tensor
// without one holds a matrix for each.
struct MixtureNames {
  const char* router = nullptr;
  const char* gate = nullptr;  // null: in `up`, above the rest
  const char *up = nullptr, *down = nullptr;
};

// Without ".weight" and ".bias", which follow. Null: these models have no such tensor.
struct TensorNames {
  // Before every name but the head's; files of a model without its head leave it out.
  const char* prefix = "";
  const char* embedding = nullptr;
  const char* embedding_norm = nullptr;
  const char* position_embedding = nullptr;
  const char* final_norm = nullptr;
  const char* head = nullptr;          // looked for unless it is tied to the embedding
  const char* layer_prefix = nullptr;  // of those below, before the layer's number and a dot
  bool layers_are_transposed = false;  // their matrices lie in the file as [cols, rows]
  const char* attention_norm = nullptr;
  const char *q = nullptr, *k = nullptr, *v = nullptr;
  const char* kv = nullptr;   // instead of the last two: K, then V
  const char* qkv = nullptr;  // instead of the three
  QkvLayout qkv_layout = QkvLayout::kStacked;
  const char *q_norm = nullptr, *k_norm = nullptr;
  const char* o = nullptr;
  const char* mlp_norm = nullptr;  // where attention's is not for both
  // Of what is added to the residual.
  const char *attention_post_norm = nullptr, *mlp_post_norm = nullptr;
  // A gated network without a name for the gate has it in `up`, above the rest.
  const char *gate = nullptr, *up = nullptr, *down = nullptr;
  // In the place of those three, in any of these ways.
  std::array<MixtureNames, 2> mixtures;
};

}  // namespace quire::engine
