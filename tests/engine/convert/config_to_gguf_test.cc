#include "engine/convert/config_to_gguf.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/model/rope_table.h"

namespace quire::engine {
namespace {

using ::testing::HasSubstr;

ModelConfig SomeConfig() {
  return {.architecture = "llama",
          .vocab_size = 32,
          .hidden_size = 64,
          .intermediate_size = 96,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 16,
          .max_position_embeddings = 128,
          .rope = {.rope_dim = 16}};
}

TEST(CheckSameModelTest, NamesTheFieldInWhichTheModelsDiffer) {
  const std::vector<std::pair<std::string, std::function<void(ModelConfig&)>>> changes = {
      {"vocab_size", [](ModelConfig& c) { c.vocab_size = 33; }},
      {"hidden_size", [](ModelConfig& c) { c.hidden_size = 65; }},
      {"intermediate_size", [](ModelConfig& c) { c.intermediate_size = 97; }},
      {"num_hidden_layers", [](ModelConfig& c) { c.num_hidden_layers = 3; }},
      {"num_attention_heads", [](ModelConfig& c) { c.num_attention_heads = 2; }},
      {"num_key_value_heads", [](ModelConfig& c) { c.num_key_value_heads = 1; }},
      {"head_dim", [](ModelConfig& c) { c.head_dim = 8; }},
      {"max_position_embeddings", [](ModelConfig& c) { c.max_position_embeddings = 64; }},
      {"kind of norm", [](ModelConfig& c) { c.norm = kernels::NormKind::kLayerNorm; }},
      {"norm_eps", [](ModelConfig& c) { c.norm_eps = 1e-6; }},
      {"norm_bias", [](ModelConfig& c) { c.norm_bias = true; }},
      {"post_norms", [](ModelConfig& c) { c.post_norms = true; }},
      {"embedding_scale", [](ModelConfig& c) { c.embedding_scale = 8.0; }},
      {"tie_word_embeddings", [](ModelConfig& c) { c.tie_word_embeddings = true; }},
      {"attention_bias", [](ModelConfig& c) { c.attention_bias = true; }},
      {"attention_scale", [](ModelConfig& c) { c.attention_scale = 0.5; }},
      {"clip_qkv", [](ModelConfig& c) { c.clip_qkv = 6.0; }},
      {"sliding_window",
       [](ModelConfig& c) {
         c.layer_windows = {0, 32};
       }},
      {"qk_norm", [](ModelConfig& c) { c.qk_norm = QkNormScope::kHead; }},
      {"activation", [](ModelConfig& c) { c.activation = kernels::Activation::kGelu; }},
      {"mlp_bias", [](ModelConfig& c) { c.mlp_bias = true; }},
      {"num_experts", [](ModelConfig& c) { c.num_experts = 4; }},
      {"num_experts_per_tok", [](ModelConfig& c) { c.num_experts_per_tok = 2; }},
      {"parallel_residual", [](ModelConfig& c) { c.parallel_residual = true; }},
      {"shared_norm", [](ModelConfig& c) { c.shared_norm = true; }},
      {"learned positions", [](ModelConfig& c) { c.learned_positions = true; }},
      {"alibi", [](ModelConfig& c) { c.alibi_bias_max = 8.0; }},
      {"rounded alibi", [](ModelConfig& c) { c.alibi_is_rounded = true; }},
      {"rope_theta", [](ModelConfig& c) { c.rope.theta = 1e6; }},
      {"rope dimensions", [](ModelConfig& c) { c.rope.rope_dim = 8; }},
      {"rope_scaling", [](ModelConfig& c) { c.rope.scaling = RopeScaling::kYarn; }},
      {"rope attention_factor", [](ModelConfig& c) { c.rope.attention_factor = 1.5; }},
      {"rope frequencies",
       [](ModelConfig& c) {
         c.rope.frequency_divisors = {1, 2, 3, 4};
       }},
      {"rope of layers with a window", [](ModelConfig& c) { c.local_rope = c.rope; }},
  };
  EXPECT_TRUE(CheckSameModel(SomeConfig(), SomeConfig()).ok());
  for (const auto& [name, change] : changes) {
    ModelConfig changed = SomeConfig();
    change(changed);
    for (const absl::Status& status :
         {CheckSameModel(changed, SomeConfig()), CheckSameModel(SomeConfig(), changed)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
      EXPECT_THAT(std::string(status.message()), HasSubstr(name + ":"));
    }
  }
}

TEST(CheckSameModelTest, FactorsCountWhereThereIsAScaling) {
  ModelConfig linear = SomeConfig();
  linear.rope.scaling = RopeScaling::kLinear;
  linear.rope.factor = 4.0;
  ModelConfig other = linear;
  EXPECT_TRUE(CheckSameModel(linear, other).ok());
  other.rope.factor = 8.0;
  EXPECT_FALSE(CheckSameModel(linear, other).ok());
  // Of the layers with a window likewise.
  linear.local_rope = other.local_rope = linear.rope;
  other.rope = linear.rope;
  EXPECT_TRUE(CheckSameModel(linear, other).ok());
  other.local_rope->theta = 5.0;
  EXPECT_FALSE(CheckSameModel(linear, other).ok());
}

TEST(CheckSameModelTest, YarnHasMoreThanAFactor) {
  ModelConfig yarn = SomeConfig();
  yarn.rope.scaling = RopeScaling::kYarn;
  yarn.rope.factor = 4.0;
  yarn.rope.original_max_position_embeddings = 32;
  yarn.rope.attention_factor = YarnAttentionFactor(4.0);
  const std::vector<std::pair<std::string, std::function<void(RopeConfig&)>>> changes = {
      {"rope_scaling", [](RopeConfig& rope) { rope.factor = 8.0; }},
      {"rope original_max_position_embeddings",
       [](RopeConfig& rope) { rope.original_max_position_embeddings = 64; }},
      {"rope beta_fast", [](RopeConfig& rope) { rope.beta_fast = 16.0; }},
      {"rope beta_slow", [](RopeConfig& rope) { rope.beta_slow = 2.0; }},
      {"rope truncate", [](RopeConfig& rope) { rope.truncate = false; }},
      {"rope attention_factor", [](RopeConfig& rope) { rope.attention_factor *= 1.0 + 0x1p-22; }},
  };
  for (const auto& [name, change] : changes) {
    ModelConfig changed = yarn;
    change(changed.rope);
    EXPECT_THAT(std::string(CheckSameModel(yarn, changed).message()), HasSubstr(name + ":"));
  }
}

TEST(CheckSameModelTest, TheFormOfWeightsAndRoundingToFloat32DoNotCount) {
  ModelConfig rewritten = SomeConfig();
  rewritten.rope.layout = kernels::RopeLayout::kInterleaved;
  rewritten.norm_weight_offset = 1.0;
  rewritten.unit_head_rows = true;
  rewritten.norm_eps = double{static_cast<float>(rewritten.norm_eps)};
  rewritten.attention_scale = 0.25;  // what a head of 16 has anyway
  EXPECT_TRUE(CheckSameModel(SomeConfig(), rewritten).ok());
}

TEST(ConfigToGgufTest, DivisorsGiveTheFrequenciesOfLlama3) {
  ModelConfig config = SomeConfig();
  config.rope = {.theta = 500000.0,
                 .rope_dim = 128,
                 .scaling = RopeScaling::kLlama3,
                 .factor = 8.0,
                 .original_max_position_embeddings = 8192};
  const ModelConfig with_divisors = WithRopeDivisors(config);
  EXPECT_EQ(with_divisors.rope.scaling, RopeScaling::kNone);
  const std::vector<double> want = RopeFrequencies(config.rope, 1);
  const std::vector<double> got = RopeFrequencies(with_divisors.rope, 1);
  ASSERT_EQ(got.size(), want.size());
  // A divisor is rounded to float32 once.
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1.0, 0x1p-24) << i;
  EXPECT_EQ(with_divisors.rope.frequency_divisors.front(), 1.0f);
  EXPECT_EQ(with_divisors.rope.frequency_divisors.back(), 8.0f);
}

}  // namespace
}  // namespace quire::engine
