#include "convert/config_to_gguf.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/model/rope_table.h"

namespace quire::convert {
namespace {

using ::testing::HasSubstr;

engine::ModelConfig SomeConfig() {
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
  const std::vector<std::pair<std::string, std::function<void(engine::ModelConfig&)>>> changes = {
      {"vocab_size", [](engine::ModelConfig& c) { c.vocab_size = 33; }},
      {"hidden_size", [](engine::ModelConfig& c) { c.hidden_size = 65; }},
      {"intermediate_size", [](engine::ModelConfig& c) { c.intermediate_size = 97; }},
      {"num_hidden_layers", [](engine::ModelConfig& c) { c.num_hidden_layers = 3; }},
      {"num_attention_heads", [](engine::ModelConfig& c) { c.num_attention_heads = 2; }},
      {"num_key_value_heads", [](engine::ModelConfig& c) { c.num_key_value_heads = 1; }},
      {"head_dim", [](engine::ModelConfig& c) { c.head_dim = 8; }},
      {"max_position_embeddings", [](engine::ModelConfig& c) { c.max_position_embeddings = 64; }},
      {"kind of norm", [](engine::ModelConfig& c) { c.norm = kernels::NormKind::kLayerNorm; }},
      {"norm_eps", [](engine::ModelConfig& c) { c.norm_eps = 1e-6; }},
      {"norm_bias", [](engine::ModelConfig& c) { c.norm_bias = true; }},
      {"post_norms", [](engine::ModelConfig& c) { c.post_norms = true; }},
      {"embedding_scale", [](engine::ModelConfig& c) { c.embedding_scale = 8.0; }},
      {"tie_word_embeddings", [](engine::ModelConfig& c) { c.tie_word_embeddings = true; }},
      {"attention_bias", [](engine::ModelConfig& c) { c.attention_bias = true; }},
      {"attention_scale", [](engine::ModelConfig& c) { c.attention_scale = 0.5; }},
      {"clip_qkv", [](engine::ModelConfig& c) { c.clip_qkv = 6.0; }},
      {"sliding_window",
       [](engine::ModelConfig& c) {
         c.layer_windows = {0, 32};
       }},
      {"qk_norm", [](engine::ModelConfig& c) { c.qk_norm = engine::QkNormScope::kHead; }},
      {"activation", [](engine::ModelConfig& c) { c.activation = kernels::Activation::kGelu; }},
      {"mlp_bias", [](engine::ModelConfig& c) { c.mlp_bias = true; }},
      {"num_experts", [](engine::ModelConfig& c) { c.num_experts = 4; }},
      {"num_experts_per_tok", [](engine::ModelConfig& c) { c.num_experts_per_tok = 2; }},
      {"parallel_residual", [](engine::ModelConfig& c) { c.parallel_residual = true; }},
      {"shared_norm", [](engine::ModelConfig& c) { c.shared_norm = true; }},
      {"learned positions", [](engine::ModelConfig& c) { c.learned_positions = true; }},
      {"alibi", [](engine::ModelConfig& c) { c.alibi_bias_max = 8.0; }},
      {"rounded alibi", [](engine::ModelConfig& c) { c.alibi_is_rounded = true; }},
      {"rope_theta", [](engine::ModelConfig& c) { c.rope.theta = 1e6; }},
      {"rope dimensions", [](engine::ModelConfig& c) { c.rope.rope_dim = 8; }},
      {"rope_scaling", [](engine::ModelConfig& c) { c.rope.scaling = engine::RopeScaling::kYarn; }},
      {"rope attention_factor", [](engine::ModelConfig& c) { c.rope.attention_factor = 1.5; }},
      {"rope frequencies",
       [](engine::ModelConfig& c) {
         c.rope.frequency_divisors = {1, 2, 3, 4};
       }},
      {"rope of layers with a window", [](engine::ModelConfig& c) { c.local_rope = c.rope; }},
  };
  EXPECT_TRUE(CheckSameModel(SomeConfig(), SomeConfig()).ok());
  for (const auto& [name, change] : changes) {
    engine::ModelConfig changed = SomeConfig();
    change(changed);
    for (const absl::Status& status :
         {CheckSameModel(changed, SomeConfig()), CheckSameModel(SomeConfig(), changed)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
      EXPECT_THAT(std::string(status.message()), HasSubstr(name + ":"));
    }
  }
}

TEST(CheckSameModelTest, FactorsCountWhereThereIsAScaling) {
  engine::ModelConfig linear = SomeConfig();
  linear.rope.scaling = engine::RopeScaling::kLinear;
  linear.rope.factor = 4.0;
  engine::ModelConfig other = linear;
  EXPECT_TRUE(CheckSameModel(linear, other).ok());
  other.rope.factor = 8.0;
  EXPECT_FALSE(CheckSameModel(linear, other).ok());
  // The rope settings of layers with a window are compared, too.
  linear.local_rope = other.local_rope = linear.rope;
  other.rope = linear.rope;
  EXPECT_TRUE(CheckSameModel(linear, other).ok());
  other.local_rope->theta = 5.0;
  EXPECT_FALSE(CheckSameModel(linear, other).ok());
}

TEST(CheckSameModelTest, YarnHasMoreThanAFactor) {
  engine::ModelConfig yarn = SomeConfig();
  yarn.rope.scaling = engine::RopeScaling::kYarn;
  yarn.rope.factor = 4.0;
  yarn.rope.original_max_position_embeddings = 32;
  yarn.rope.attention_factor = engine::YarnAttentionFactor(4.0);
  const std::vector<std::pair<std::string, std::function<void(engine::RopeConfig&)>>> changes = {
      {"rope_scaling", [](engine::RopeConfig& rope) { rope.factor = 8.0; }},
      {"rope original_max_position_embeddings",
       [](engine::RopeConfig& rope) { rope.original_max_position_embeddings = 64; }},
      {"rope beta_fast", [](engine::RopeConfig& rope) { rope.beta_fast = 16.0; }},
      {"rope beta_slow", [](engine::RopeConfig& rope) { rope.beta_slow = 2.0; }},
      {"rope truncate", [](engine::RopeConfig& rope) { rope.truncate = false; }},
      {"rope attention_factor",
       [](engine::RopeConfig& rope) { rope.attention_factor *= 1.0 + 0x1p-22; }},
  };
  for (const auto& [name, change] : changes) {
    engine::ModelConfig changed = yarn;
    change(changed.rope);
    EXPECT_THAT(std::string(CheckSameModel(yarn, changed).message()), HasSubstr(name + ":"));
  }
}

TEST(CheckSameModelTest, TheFormOfWeightsAndRoundingToFloat32DoNotCount) {
  engine::ModelConfig rewritten = SomeConfig();
  rewritten.rope.layout = kernels::RopeLayout::kInterleaved;
  rewritten.norm_weight_offset = 1.0;
  rewritten.unit_head_rows = true;
  rewritten.norm_eps = double{static_cast<float>(rewritten.norm_eps)};
  rewritten.attention_scale = 0.25;  // the default for a head_dim of 16
  EXPECT_TRUE(CheckSameModel(SomeConfig(), rewritten).ok());
}

TEST(ConfigToGgufTest, DivisorsGiveTheFrequenciesOfLlama3) {
  engine::ModelConfig config = SomeConfig();
  config.rope = {.theta = 500000.0,
                 .rope_dim = 128,
                 .scaling = engine::RopeScaling::kLlama3,
                 .factor = 8.0,
                 .original_max_position_embeddings = 8192};
  const engine::ModelConfig with_divisors = WithRopeDivisors(config);
  EXPECT_EQ(with_divisors.rope.scaling, engine::RopeScaling::kNone);
  const std::vector<double> want = engine::RopeFrequencies(config.rope, 1);
  const std::vector<double> got = engine::RopeFrequencies(with_divisors.rope, 1);
  ASSERT_EQ(got.size(), want.size());
  // Each divisor was rounded once, to float32.
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1.0, 0x1p-24) << i;
  EXPECT_EQ(with_divisors.rope.frequency_divisors.front(), 1.0f);
  EXPECT_EQ(with_divisors.rope.frequency_divisors.back(), 8.0f);
}

}  // namespace
}  // namespace quire::convert
