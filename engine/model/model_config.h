#pragma once

// The description of a model, for every file format. Most fields are named as in config.json.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/expert_weights.h"
#include "kernels/ops/attention_pattern.h"
#include "kernels/ops/paged_attention.h"
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
//   kLongRope Each frequency is divided by a factor of its own. There are factors for the trained
//             context, and others for longer ones (arXiv:2402.13753). The served length determines
//             which are used, as for kDynamic.
enum class RopeScaling { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

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
  double attention_factor = 1.0;  // multiplies cosines and sines; also used by kLongRope
  // kLongRope: divisors of the frequencies, [rope_dim / 2], for the trained context and beyond it
  std::vector<double> short_factors, long_factors;
  // Divisors of the frequencies, [rope_dim / 2], from GGUF's rope_freqs.weight. Empty: all are 1.
  std::vector<float> frequency_divisors;
};

// The norm of queries and of keys.
//   kNone            no norm
//   kHead            each head by itself
//   kHeadUnweighted  each head by itself, by a norm without weights
//   kToken           all heads of a token as one vector
enum class QkNormScope { kNone, kHead, kHeadUnweighted, kToken };

// The growth of queries with their position (arXiv:2501.19399). The query at position p is
// multiplied by 1 + rate * log(1 + floor((p + 1) / interval)).
struct QueryGrowth {
  int64_t interval = 0;  // in tokens; 0: queries do not grow
  double rate = 0.0;
  auto operator<=>(const QueryGrowth&) const = default;
};

// The attention of one layer. Every member may differ between layers.
struct AttentionSpec {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t key_dim = 0;                // elements of a key, and of a query
  int64_t value_dim = 0;              // elements of a value, and of a head's output
  kernels::AttentionPattern pattern;  // the keys that a query sees
  int rope = 0;           // index in ModelConfig::ropes; -1: queries and keys do not rotate
  double scale = 0.0;     // factor of q . k; 0: 1 / sqrt(key_dim)
  double soft_cap = 0.0;  // a scaled score s becomes cap * tanh(s / cap); 0: no cap
  double clip = 0.0;      // q, k and v are clamped to [-clip, clip]; 0: no clamp
  bool bias = false;      // biases on q, k, v (and o where the file has one)
  QkNormScope qk_norm = QkNormScope::kNone;
  QueryGrowth query_growth;
  double value_scale = 1.0;  // factor of values
  // True if ALiBi is computed as in Falcon's published code. The bias of ALiBi is then added before
  // the scores are scaled, and slopes and products are rounded to bfloat16. See PagedAttentionArgs.
  bool alibi_is_rounded = false;
  bool sinks = false;  // each head has a learned logit, without key or value, in its softmax
  // The scales of an fp8 cache, which ReadCacheScales finds in Hugging Face directories.
  kernels::CacheScales cache_scales;

  void set_head_dim(int64_t dim) { key_dim = value_dim = dim; }
  // The elements of a token's queries, keys, values and outputs in all heads.
  int64_t q_size() const { return num_heads * key_dim; }
  int64_t k_size() const { return num_kv_heads * key_dim; }
  int64_t v_size() const { return num_kv_heads * value_dim; }
  int64_t qkv_size() const { return q_size() + k_size() + v_size(); }
  int64_t o_size() const { return num_heads * value_dim; }
  kernels::AttentionPlanKey plan_key() const;
  bool operator==(const AttentionSpec&) const = default;
};

// A mixture of experts. Each expert is a feed-forward network.
struct ExpertsSpec {
  int64_t count = 0;      // 0: the layer has one network, and no mixture
  int64_t per_token = 0;  // experts that compute one token
  bool router_bias = false;
  bool choice_bias = false;  // as in kernels::MoeArgs
  kernels::ExpertWeights weights = kernels::ExpertWeights::kSoftmaxOfChosen;
  bool weights_scale_input = false;  // as in kernels::MoeArgs
  // The inner size of a network that all tokens use. Its output is added to that of the mixture. 0:
  // there is no such network.
  int64_t shared_inner_size = 0;
  bool operator==(const ExpertsSpec&) const = default;
};

// The feed-forward network of one layer, or each expert of its mixture.
struct FeedForwardSpec {
  int64_t inner_size = 0;
  kernels::Activation activation = kernels::Activation::kSiluMul;
  double activation_limit = 0.0;  // of kClampedSiluMul
  bool bias = false;
  ExpertsSpec experts;

  // Returns the inner size of the network that all tokens use, or 0 if there is none.
  int64_t dense_inner_size() const {
    return experts.count == 0 ? inner_size : experts.shared_inner_size;
  }
  bool operator==(const FeedForwardSpec&) const = default;
};

// The way in which a layer adds to the residual x.
//   kSerial           y = x + attention(norm(x)); y + mlp(norm(y))
//   kPostNorms        as kSerial, with a norm of each branch before it is added
//   kParallel         x + attention(norm(x)) + mlp(other_norm(x))
//   kParallelOneNorm  x + attention(norm(x)) + mlp(norm(x))
enum class Residual { kSerial, kPostNorms, kParallel, kParallelOneNorm };

struct LayerSpec {
  AttentionSpec attention;
  FeedForwardSpec feed_forward;
  Residual residual = Residual::kSerial;

  bool has_experts() const { return feed_forward.experts.count != 0; }
  bool is_parallel() const {
    return residual == Residual::kParallel || residual == Residual::kParallelOneNorm;
  }
  bool operator==(const LayerSpec&) const = default;
};

struct ModelConfig {
  std::string architecture;  // the name in the registry, such as "llama"
  std::string name;          // the name of the model in the file; empty if the file gives none
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t max_position_embeddings = 0;  // trained context, in tokens
  std::vector<LayerSpec> layers;        // at least one
  kernels::NormKind norm = kernels::NormKind::kRmsNorm;
  double norm_eps = 1e-5;
  bool norm_bias = false;
  double norm_weight_offset = 0.0;  // added to the file's norm weights
  // True if a learned row for each position is added to the row of the token. There are
  // max_position_embeddings rows.
  bool learned_positions = false;
  bool unit_head_rows = false;   // each row of the head is divided by its length
  double embedding_scale = 1.0;  // factor of token rows; a tied head uses unscaled rows
  bool tie_word_embeddings = false;
  double logit_scale = 1.0;     // factor of the logits, which is put into the final norm's weights
  double logit_soft_cap = 0.0;  // a logit x becomes cap * tanh(x / cap); 0: no cap
  // The smallest slope of ALiBi is 2^-alibi_bias_max (see kernels/alibi_slopes.h). Absent: the
  // model has no ALiBi, and positions are rotary or learned.
  std::optional<double> alibi_bias_max;
  // The rotations of queries and keys, indexed by AttentionSpec::rope. All have the same layout.
  // Empty: the model has ALiBi or learned positions.
  std::vector<RopeConfig> ropes;
  bool has_images = false;  // the file has tensors that read images, which are not served
  std::string weight_type;  // the type of most weights, such as "Q4_1" or "BF16"

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
};

// Returns true if the model can use contexts longer than max_position_embeddings. Such a model has
// ALiBi, which extrapolates, or stretched rotary positions.
bool ServesBeyondItsContext(const ModelConfig& config);
// Returns YaRN's factor of cosines and sines: 1 + 0.1 * mscale * log(factor), and 1 if factor < 1.
double YarnAttentionFactor(double factor, double mscale = 1.0);
// Returns the factor of q . k.
double AttentionScale(const AttentionSpec& attention);
// Returns true if the heads of all layers have the same numbers and sizes.
bool HeadsAreAlike(const ModelConfig& config);
// Returns the pattern of each layer.
std::vector<kernels::AttentionPattern> LayerPatterns(const ModelConfig& config);
// Returns the distinct patterns of all layers, in ascending order. A pattern that sees all keys
// comes first.
std::vector<kernels::AttentionPattern> DifferentPatterns(const ModelConfig& config);
// Returns the largest of_layer(layer) of all layers.
template <typename F>
int64_t LargestOf(const ModelConfig& config, F&& of_layer) {
  int64_t largest = 0;
  for (const LayerSpec& layer : config.layers)
    largest = std::max<int64_t>(largest, of_layer(layer));
  return largest;
}

}  // namespace quire::engine
