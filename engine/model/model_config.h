#pragma once

// The description of a model, in the words of config.json, for every file format.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/ops/qkv_post.h"

namespace quire::engine {

// The ways to stretch trained rotary frequencies to longer contexts.
//   kLinear   All frequencies are divided by the factor (arXiv:2306.15595).
//   kDynamic  Theta is larger for contexts longer than the trained one ("dynamic NTK"). The served
//             length determines theta. A theta determined by the length of each sequence would
//             change keys that are already cached.
//   kLlama3   Frequencies of long wavelengths are divided (arXiv:2407.21783).
//   kYarn     Frequencies of long wavelengths are divided, and those of short wavelengths are kept.
//             Frequencies in between are blended by their turns in the trained context
//             (arXiv:2309.00071).
enum class RopeScaling { kNone, kLinear, kDynamic, kLlama3, kYarn };

struct RopeConfig {
  kernels::RopeLayout layout = kernels::RopeLayout::kHalfSplit;
  double theta = 10000.0;
  int64_t rope_dim = 0;  // leading dimensions of a head that rotate; 0: none
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;  // trained context; for all scalings but kLinear
  // kLlama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // kYarn
  double beta_fast = 32.0;  // in turns within the trained context
  double beta_slow = 1.0;
  bool truncate = true;           // true: the ends of the blend are whole dimensions
  double attention_factor = 1.0;  // multiplies cosines and sines
  // Divisors of the frequencies, [rope_dim / 2], from GGUF's rope_freqs.weight. Empty: all are 1.
  std::vector<float> frequency_divisors;
};

// The elements over which one norm of queries or keys is computed: no norm, one head, or all heads
// of a token.
enum class QkNormScope { kNone, kHead, kToken };

struct ModelConfig {
  std::string architecture;  // the name in the registry, such as "llama"
  std::string name;          // the name of the model in the file; empty if the file gives none
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
  double norm_weight_offset = 0.0;  // added to the file's norm weights
  // True if a norm also follows attention, and another norm follows feed-forward. These norms are
  // before the residual addition.
  bool post_norms = false;
  // True if a learned row for each position is added to the row of the token. There are
  // max_position_embeddings rows.
  bool learned_positions = false;
  bool unit_head_rows = false;   // each row of the head is divided by its length
  double embedding_scale = 1.0;  // factor of token rows; a tied head uses unscaled rows
  bool tie_word_embeddings = false;
  bool attention_bias = false;   // biases on q, k, v (and o where the file has one)
  double attention_scale = 0.0;  // factor of q . k; 0: 1 / sqrt(head_dim)
  double clip_qkv = 0.0;         // q, k and v are clamped to [-clip, clip]; 0: no clamp
  // The number of tokens that a query sees in each layer, itself included; 0: all. The size is
  // num_hidden_layers, or 0 when no layer has a window.
  std::vector<int64_t> layer_windows;
  QkNormScope qk_norm = QkNormScope::kNone;
  kernels::Activation activation = kernels::Activation::kSiluMul;
  bool mlp_bias = false;
  // With experts, a layer has a mixture of them instead of one feed-forward network. Each expert is
  // intermediate_size wide.
  int64_t num_experts = 0;  // 0: each layer has one network
  int64_t num_experts_per_tok = 0;
  bool norm_topk_prob = true;  // the chosen experts' weights are scaled to sum to 1
  // Attention and feed-forward both read the same input: x + attention(norm(x)) + mlp(norm(x)).
  bool parallel_residual = false;
  bool shared_norm = false;  // one norm for attention and feed-forward
  // The largest exponent of the ALiBi slopes, if positions are by ALiBi. If absent, positions are
  // rotary or learned.
  std::optional<double> alibi_bias_max;
  // True if ALiBi is computed as in Falcon's published code. The bias of ALiBi is then added before
  // the scores are scaled, and slopes and products are rounded to bfloat16. See PagedAttentionArgs.
  bool alibi_is_rounded = false;
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // for layers with a window; absent: `rope`
  std::string weight_type;               // the type of most weights, such as "Q4_1" or "BF16"
};

// Returns true if positions rotate queries and keys.
bool HasRope(const ModelConfig& config);
// Returns true if the model can use contexts longer than max_position_embeddings. Such a model has
// ALiBi, which extrapolates, or stretched rotary positions.
bool ServesBeyondItsContext(const ModelConfig& config);
// Returns the factor of cosines and sines under kYarn, for models that do not name a factor.
double YarnAttentionFactor(double factor, double mscale = 1.0);
// Returns the factor of q . k.
double AttentionScale(const ModelConfig& config);
// Returns the window of one layer; 0: none.
int64_t WindowOf(const ModelConfig& config, int64_t layer);
// Returns the distinct windows of all layers, ascending; 0 stands for full attention.
std::vector<int64_t> DifferentWindows(const ModelConfig& config);

}  // namespace quire::engine
