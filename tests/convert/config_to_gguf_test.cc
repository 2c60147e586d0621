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
  const engine::LayerSpec layer = {
      .attention = {.num_heads = 4, .num_kv_heads = 2, .key_dim = 16, .value_dim = 16},
      .feed_forward = {.inner_size = 96}};
  return {.architecture = "llama",
          .vocab_size = 32,
          .hidden_size = 64,
          .max_position_embeddings = 128,
          .layers = {layer, layer},
          .ropes = {{.rope_dim = 16}}};
}

TEST(CheckSameModelTest, NamesTheFieldInWhichTheModelsDiffer) {
  const std::vector<std::pair<std::string, std::function<void(engine::ModelConfig&)>>> changes = {
      {"vocab_size", [](engine::ModelConfig& c) { c.vocab_size = 33; }},
      {"hidden_size", [](engine::ModelConfig& c) { c.hidden_size = 65; }},
      {"intermediate_size",
       [](engine::ModelConfig& c) { c.layers[0].feed_forward.inner_size = 97; }},
      {"num_hidden_layers", [](engine::ModelConfig& c) { c.layers.resize(3); }},
      {"num_attention_heads", [](engine::ModelConfig& c) { c.layers[0].attention.num_heads = 2; }},
      {"num_key_value_heads",
       [](engine::ModelConfig& c) { c.layers[0].attention.num_kv_heads = 1; }},
      {"head_dim", [](engine::ModelConfig& c) { c.layers[0].attention.key_dim = 8; }},
      {"v_head_dim", [](engine::ModelConfig& c) { c.layers[0].attention.value_dim = 8; }},
      {"max_position_embeddings", [](engine::ModelConfig& c) { c.max_position_embeddings = 64; }},
      {"kind of norm", [](engine::ModelConfig& c) { c.norm = kernels::NormKind::kLayerNorm; }},
      {"norm_eps", [](engine::ModelConfig& c) { c.norm_eps = 1e-6; }},
      {"norm_bias", [](engine::ModelConfig& c) { c.norm_bias = true; }},
      {"embedding_scale", [](engine::ModelConfig& c) { c.embedding_scale = 8.0; }},
      {"logit_scale", [](engine::ModelConfig& c) { c.logit_scale = 0.125; }},
      {"tie_word_embeddings", [](engine::ModelConfig& c) { c.tie_word_embeddings = true; }},
      {"attention_bias", [](engine::ModelConfig& c) { c.layers[0].attention.bias = true; }},
      {"attention_scale", [](engine::ModelConfig& c) { c.layers[0].attention.scale = 0.5; }},
      {"attn_logit_softcapping",
       [](engine::ModelConfig& c) { c.layers[0].attention.soft_cap = 50.0; }},
      {"final_logit_softcapping", [](engine::ModelConfig& c) { c.logit_soft_cap = 30.0; }},
      {"scales of an fp8 cache",
       [](engine::ModelConfig& c) { c.layers[1].attention.cache_scales.v = 0.5f; }},
      {"sinks", [](engine::ModelConfig& c) { c.layers[0].attention.sinks = true; }},
      {"swiglu_limit",
       [](engine::ModelConfig& c) { c.layers[0].feed_forward.activation_limit = 7.0; }},
      {"bias of the router",
       [](engine::ModelConfig& c) { c.layers[0].feed_forward.experts.router_bias = true; }},
      {"rope long_factor",
       [](engine::ModelConfig& c) {
         c.ropes[0].long_factors = {1, 2, 3, 4};
       }},
      {"clip_qkv", [](engine::ModelConfig& c) { c.layers[0].attention.clip = 6.0; }},
      {"sliding_window",
       [](engine::ModelConfig& c) {
         c.layers[1].attention.pattern = kernels::AttentionPattern::Window(32);
       }},
      {"qk_norm",
       [](engine::ModelConfig& c) { c.layers[0].attention.qk_norm = engine::QkNormScope::kHead; }},
      {"activation",
       [](engine::ModelConfig& c) {
         c.layers[0].feed_forward.activation = kernels::Activation::kGelu;
       }},
      {"mlp_bias", [](engine::ModelConfig& c) { c.layers[0].feed_forward.bias = true; }},
      {"num_experts", [](engine::ModelConfig& c) { c.layers[0].feed_forward.experts.count = 4; }},
      {"num_experts_per_tok",
       [](engine::ModelConfig& c) { c.layers[0].feed_forward.experts.per_token = 2; }},
      {"residual",
       [](engine::ModelConfig& c) { c.layers[1].residual = engine::Residual::kParallel; }},
      {"rope of each layer", [](engine::ModelConfig& c) { c.layers[1].attention.rope = -1; }},
      {"learned positions", [](engine::ModelConfig& c) { c.learned_positions = true; }},
      {"alibi", [](engine::ModelConfig& c) { c.alibi_bias_max = 8.0; }},
      {"rounded alibi",
       [](engine::ModelConfig& c) { c.layers[0].attention.alibi_is_rounded = true; }},
      {"rope_theta", [](engine::ModelConfig& c) { c.ropes[0].theta = 1e6; }},
      {"rope dimensions", [](engine::ModelConfig& c) { c.ropes[0].rope_dim = 8; }},
      {"rope_scaling",
       [](engine::ModelConfig& c) { c.ropes[0].scaling = engine::RopeScaling::kYarn; }},
      {"rope attention_factor", [](engine::ModelConfig& c) { c.ropes[0].attention_factor = 1.5; }},
      {"rope frequencies",
       [](engine::ModelConfig& c) {
         c.ropes[0].frequency_divisors = {1, 2, 3, 4};
       }},
      {"rope of layers with a window",
       [](engine::ModelConfig& c) { c.ropes.push_back(c.ropes[0]); }},
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
  linear.ropes[0].scaling = engine::RopeScaling::kLinear;
  linear.ropes[0].factor = 4.0;
  engine::ModelConfig other = linear;
  EXPECT_TRUE(CheckSameModel(linear, other).ok());
  other.ropes[0].factor = 8.0;
  EXPECT_FALSE(CheckSameModel(linear, other).ok());
  // CheckSameModel compares every entry of `ropes`, not only the first.
  linear.ropes.push_back(linear.ropes[0]);
  other.ropes = linear.ropes;
  EXPECT_TRUE(CheckSameModel(linear, other).ok());
  other.ropes[1].theta = 5.0;
  EXPECT_FALSE(CheckSameModel(linear, other).ok());
}

TEST(CheckSameModelTest, YarnHasMoreThanAFactor) {
  engine::ModelConfig yarn = SomeConfig();
  yarn.ropes[0].scaling = engine::RopeScaling::kYarn;
  yarn.ropes[0].factor = 4.0;
  yarn.ropes[0].original_max_position_embeddings = 32;
  yarn.ropes[0].attention_factor = engine::YarnAttentionFactor(4.0);
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
    change(changed.ropes[0]);
    EXPECT_THAT(std::string(CheckSameModel(yarn, changed).message()), HasSubstr(name + ":"));
  }
}

TEST(CheckSameModelTest, TheFormOfWeightsAndRoundingToFloat32DoNotCount) {
  engine::ModelConfig rewritten = SomeConfig();
  rewritten.ropes[0].layout = kernels::RopeLayout::kInterleaved;
  rewritten.norm_weight_offset = 1.0;
  rewritten.unit_head_rows = true;
  rewritten.norm_eps = double{static_cast<float>(rewritten.norm_eps)};
  rewritten.layers[0].attention.scale = 0.25;  // the default for a head_dim of 16
  EXPECT_TRUE(CheckSameModel(SomeConfig(), rewritten).ok());
}

TEST(ConfigToGgufTest, DivisorsGiveTheFrequenciesOfLlama3) {
  engine::ModelConfig config = SomeConfig();
  config.ropes[0] = {.theta = 500000.0,
                     .rope_dim = 128,
                     .scaling = engine::RopeScaling::kLlama3,
                     .factor = 8.0,
                     .original_max_position_embeddings = 8192};
  const engine::ModelConfig with_divisors = WithRopeDivisors(config);
  EXPECT_EQ(with_divisors.ropes[0].scaling, engine::RopeScaling::kNone);
  const std::vector<double> want = engine::RopeFrequencies(config.ropes[0], 1);
  const std::vector<double> got = engine::RopeFrequencies(with_divisors.ropes[0], 1);
  ASSERT_EQ(got.size(), want.size());
  // Each divisor was rounded once, to float32.
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1.0, 0x1p-24) << i;
  EXPECT_EQ(with_divisors.ropes[0].frequency_divisors.front(), 1.0f);
  EXPECT_EQ(with_divisors.ropes[0].frequency_divisors.back(), 8.0f);
}

}  // namespace
}  // namespace quire::convert
