#pragma once

// What a model is, in the words of its config.json, whatever file it came from.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/ops/qkv_post.h"

namespace quire::engine {

// How trained rotary frequencies are stretched to longer contexts.
//   kLinear   every frequency divided by the factor (arXiv:2306.15595)
//   kDynamic  a larger theta for contexts longer than the trained one, by the length served at
//             ("dynamic NTK"): a sequence's own length would change the keys already cached
//   kLlama3   long wavelengths divided (arXiv:2407.21783)
//   kYarn     those in between blended by their turns in the trained context (arXiv:2309.00071)
enum class RopeScaling { kNone, kLinear, kDynamic, kLlama3, kYarn };

struct RopeConfig {
  kernels::RopeLayout layout = kernels::RopeLayout::kHalfSplit;
  double theta = 10000.0;
  int64_t rope_dim = 0;  // leading dimensions of a head that turn; 0: none
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;  // trained context; all but kLinear
  // kLlama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // kYarn
  double beta_fast = 32.0;  // turns
  double beta_slow = 1.0;
  bool truncate = true;           // whole dimensions as ends of the blend
  double attention_factor = 1.0;  // of cosines and sines
  // Divisors of each frequency, [rope_dim / 2]; from GGUF's rope_freqs.weight. Empty: all 1.
  std::vector<float> frequency_divisors;
};

// What one norm of queries, or of keys, spans.
enum class QkNormScope { kNone, kHead, kToken };

struct ModelConfig {
  std::string architecture;  // the registry's name: "llama"
  std::string name;          // what the file calls itself; empty when it does not
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;  // trained context, in tokens
  kernels::NormKind norm = kernels::NormKind::kRmsNorm;
  double norm_eps = 1e-5;
  bool norm_bias = false;
  double norm_weight_offset = 0.0;  // added to the weights of norms, as the file has them
  // Norms of what attention and feed-forward add to the residual, besides those before them.
  bool post_norms = false;
  // A row for each position is added to the token's: max_position_embeddings of them.
  bool learned_positions = false;
  bool unit_head_rows = false;   // the head's rows are divided by their length
  double embedding_scale = 1.0;  // of the tokens' rows; the head, if tied, has them as they are
  bool tie_word_embeddings = false;
  bool attention_bias = false;   // biases on q, k, v (and o where the file has one)
  double attention_scale = 0.0;  // of q . k; 0: 1 / sqrt(head_dim)
  double clip_qkv = 0.0;         // q, k and v are clamped to [-clip, clip]; 0: they are not
  // Tokens that a layer sees back from a query, itself included; 0: all. [num_hidden_layers], or
  // empty when no layer has a window.
  std::vector<int64_t> layer_windows;
  QkNormScope qk_norm = QkNormScope::kNone;
  kernels::Activation activation = kernels::Activation::kSiluMul;
  bool mlp_bias = false;
  // A mixture of experts in the place of one feed-forward network, each intermediate_size wide.
  int64_t num_experts = 0;  // 0: one network
  int64_t num_experts_per_tok = 0;
  bool norm_topk_prob = true;  // the weights of the chosen ones add up to 1
  // Attention and feed-forward both read the same input: x + attention(norm(x)) + mlp(norm(x)).
  bool parallel_residual = false;
  bool shared_norm = false;  // of both halves
  // Positions by ALiBi, the largest exponent of its slopes; nothing: by `rope`.
  std::optional<double> alibi_bias_max;
  // Falcon's, as published: added before the scores are scaled, slopes and products rounded to
  // bfloat16. See PagedAttentionArgs.
  bool alibi_is_rounded = false;
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // of the layers with a window, where it is another
  std::string weight_type;               // the type most of the weights have: "Q4_1", "BF16"
};

// Whether positions turn queries and keys.
bool HasRope(const ModelConfig& config);
// Whether contexts longer than max_position_embeddings mean something to the model: its positions
// are ALiBi, which extrapolates, or stretched rotary ones.
bool ServesBeyondItsContext(const ModelConfig& config);
// Of cosines and sines under kYarn, where a model does not say its own.
double YarnAttentionFactor(double factor, double mscale = 1.0);
// Of q . k.
double AttentionScale(const ModelConfig& config);
// Of one layer.
int64_t WindowOf(const ModelConfig& config, int64_t layer);
// The different ones of all layers, ascending: 0, layers that see all, comes first.
std::vector<int64_t> DifferentWindows(const ModelConfig& config);

}  // namespace quire::engine
