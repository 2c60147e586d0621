#pragma once

// The names of a decoder's tensors in the files of an architecture.

#include <array>

namespace quire::engine {

// The order of the rows in a fused projection of queries, keys and values.
enum class QkvLayout {
  kStacked,  // Q of all heads, then K, then V
  kGrouped,  // for each KV head: its query heads, its keys, its values
};

// The names of the tensors of a mixture of experts, without the prefix of the layer. '#' stands for
// the number of an expert. If the name of gate, up or down has no '#', the tensor holds the
// matrices of all experts.
struct MixtureNames {
  const char* router = nullptr;
  const char* gate = nullptr;  // null: the first rows of `up`
  const char *up = nullptr, *down = nullptr;
  const char *router_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;  // null: none
  const char* choice_bias = nullptr;
  bool transposed = false;  // the matrices of experts are stored as [cols, rows]
  bool in_turns = false;    // the rows of gate and up alternate in `up`; only if transposed
};

// Names of tensors, without the ".weight" or ".bias" at the end. Null: models of the architecture
// have no such tensor.
struct TensorNames {
  // The prefix of all names except the name of the head. A file that was saved without the head
  // omits the prefix.
  const char* prefix = "";
  // The prefix and the name of the head in files of another spelling. Null: there is one spelling.
  const char *other_prefix = nullptr, *other_head = nullptr;
  // The prefixes of the names of tensors that are not needed: they process images, or draft tokens.
  std::array<const char*, 4> left_out = {};
  const char* embedding = nullptr;
  const char* embedding_norm = nullptr;
  const char* position_embedding = nullptr;
  const char* final_norm = nullptr;
  const char* head = nullptr;          // required unless the head is tied to the embedding
  const char* layer_prefix = nullptr;  // prefix of the names below; a number and a dot follow it
  bool layers_are_transposed = false;  // matrices of layers are stored as [cols, rows]
  const char* attention_norm = nullptr;
  const char *q = nullptr, *k = nullptr, *v = nullptr;
  const char* kv = nullptr;   // replaces k and v; its rows are K, then V
  const char* qkv = nullptr;  // replaces q, k and v
  QkvLayout qkv_layout = QkvLayout::kStacked;
  const char *q_norm = nullptr, *k_norm = nullptr;
  const char* o = nullptr;
  const char* sinks = nullptr;     // without ".weight"
  const char* mlp_norm = nullptr;  // null if feed-forward shares attention_norm
  // Norms after attention and feed-forward, before the residual addition.
  const char *attention_post_norm = nullptr, *mlp_post_norm = nullptr;
  // If a gated network has no name for the gate, the gate is the first half of `up`, or its rows 0,
  // 2, ...
  const char *gate = nullptr, *up = nullptr, *down = nullptr;
  bool up_in_turns = false;  // rows 0, 2, ... of `up` are the gate
  // The network of a mixture that computes every token.
  const char *shared_gate = nullptr, *shared_up = nullptr, *shared_down = nullptr;
  // The names for a mixture, which replace gate, up and down. A file uses one of the entries.
  std::array<MixtureNames, 2> mixtures;
};

}  // namespace quire::engine
