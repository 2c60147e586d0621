// Tests how the config.json of Phi-3-small is read.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "kernels/activation.h"
#include "tests/engine/model/config_testing.h"

namespace quire::engine {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Pattern = kernels::AttentionPattern;

// The settings of the published models with a context of 8,192, but fewer layers.
json Phi3Small() {
  return json::parse(R"({"architectures": ["Phi3SmallForCausalLM"], "vocab_size": 100352,
    "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 8, "ff_intermediate_size": 14336, "ff_dim_multiplier": null,
    "hidden_act": "gegelu", "gegelu_limit": 20.0, "gegelu_pad_to_256": true,
    "layer_norm_epsilon": 1e-05, "max_position_embeddings": 8192,
    "rope_embedding_base": 1000000, "rope_position_scale": 1.0, "rope_scaling": null,
    "mup_use_scaling": true, "mup_attn_multiplier": 1.0, "mup_embedding_multiplier": 10.0,
    "mup_width_multiplier": 8.0, "blocksparse_block_size": 64,
    "blocksparse_num_local_blocks": 16, "blocksparse_vert_stride": 8,
    "blocksparse_homo_head_pattern": false, "blocksparse_triton_kernel_block_size": 64,
    "dense_attention_every_n_layers": 2})");
}

std::vector<Pattern> PatternsOf(const json& file) {
  const auto config = Read(file);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? LayerPatterns(*config) : std::vector<Pattern>();
}

TEST(Phi3SmallConfigTest, ReadsThePublishedSettings) {
  const auto config = Read(Phi3Small());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "phi3_small");
  const AttentionSpec& attention = config->layers[0].attention;
  EXPECT_EQ(attention.key_dim, 128);
  EXPECT_EQ(attention.scale, 1.0 / 128);
  EXPECT_TRUE(attention.bias && config->norm_bias && config->tie_word_embeddings);
  EXPECT_EQ(config->norm, kernels::NormKind::kLayerNorm);
  const FeedForwardSpec& feed_forward = config->layers[0].feed_forward;
  EXPECT_EQ(feed_forward.activation, kernels::Activation::kClampedSiluMul);
  EXPECT_EQ(feed_forward.activation_limit, 20.0);
  EXPECT_EQ(feed_forward.inner_size, 14336);
  EXPECT_TRUE(feed_forward.bias);
  EXPECT_EQ(config->embedding_scale, 10.0);
  EXPECT_EQ(config->logit_scale, 0.125);
  EXPECT_EQ(config->ropes[0].theta, 1e6);
  EXPECT_EQ(config->ropes[0].rope_dim, 128);
  EXPECT_EQ(config->ropes[0].scaling, RopeScaling::kNone);
  const Pattern blocks = Pattern::Blocks(64, 16, 8, 1);
  EXPECT_THAT(LayerPatterns(*config), ElementsAre(blocks, Pattern(), blocks, Pattern()));
}

TEST(Phi3SmallConfigTest, LayersAndHeadsHaveBlocksByTheirNumber) {
  json file = Phi3Small();
  const Pattern blocks = Pattern::Blocks(64, 16, 8, 1);
  file["dense_attention_every_n_layers"] = 3;
  EXPECT_THAT(PatternsOf(file), ElementsAre(blocks, blocks, Pattern(), blocks));
  for (const json& none : {json(nullptr), json(0)}) {
    file["dense_attention_every_n_layers"] = none;
    EXPECT_THAT(PatternsOf(file), ElementsAre(blocks, blocks, blocks, blocks));
  }
  file["blocksparse_homo_head_pattern"] = true;
  EXPECT_EQ(PatternsOf(file)[0], Pattern::Blocks(64, 16, 8, 0));
  file["blocksparse_homo_head_pattern"] = false;
  file["blocksparse_vert_stride"] = 100;
  EXPECT_EQ(PatternsOf(file)[0], Pattern::Blocks(64, 16, 100, 3));
}

TEST(Phi3SmallConfigTest, ScalesThatAreAbsentAreOne) {
  json file = Phi3Small();
  file["mup_use_scaling"] = false;
  file["mup_embedding_multiplier"] = nullptr;
  file["mup_width_multiplier"] = 0.0;
  const auto config = Read(file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers[0].attention.scale, 0.0);
  EXPECT_EQ(config->embedding_scale, 1.0);
  EXPECT_EQ(config->logit_scale, 1.0);
}

// For an absent key, the published class has a default other than 1.
TEST(Phi3SmallConfigTest, ScalesAreNamed) {
  for (const char* key : {"mup_use_scaling", "mup_embedding_multiplier", "mup_width_multiplier"}) {
    json file = Phi3Small();
    file.erase(key);
    EXPECT_THAT(std::string(Read(file).status().message()),
                HasSubstr(absl::StrCat(key, ": want a value, or null")));
  }
}

TEST(Phi3SmallConfigTest, ALongContextHasLongRope) {
  json file = Phi3Small();
  file["max_position_embeddings"] = 131072;
  file["rope_scaling"] = {{"type", "su"},
                          {"original_max_position_embeddings", 8192},
                          {"short_factor", std::vector<double>(64, 1.5)},
                          {"long_factor", std::vector<double>(64, 2.5)},
                          {"short_mscale", 1.25},
                          {"long_mscale", 1.25}};
  const auto config = Read(file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ropes[0].scaling, RopeScaling::kLongRope);
  EXPECT_EQ(config->ropes[0].original_max_position_embeddings, 8192);
  EXPECT_EQ(config->ropes[0].attention_factor, 1.25);
  EXPECT_EQ(config->ropes[0].long_factors[63], 2.5);
  file["rope_scaling"]["long_mscale"] = 1.5;
  EXPECT_THAT(Refusal(file), HasSubstr("long_mscale: want short_mscale 1.25, got 1.5"));
  file["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_THAT(Refusal(file), HasSubstr("original_max_position_embeddings"));
}

TEST(Phi3SmallConfigTest, WhatIsNotSupportedIsRefusedByName) {
  const std::pair<const char*, json> bad[] = {{"hidden_act", "gelu"},
                                              {"ff_dim_multiplier", 4},
                                              {"gegelu_limit", nullptr},
                                              {"ff_intermediate_size", nullptr},
                                              {"rope_position_scale", 0.5},
                                              {"rope_embedding_base", nullptr},
                                              {"mup_embedding_multiplier", -1.0},
                                              {"mup_width_multiplier", -8.0},
                                              {"mup_attn_multiplier", 0.0},
                                              {"blocksparse_block_size", 32},
                                              {"blocksparse_block_size", nullptr},
                                              {"blocksparse_num_local_blocks", 0},
                                              {"blocksparse_vert_stride", 0},
                                              {"blocksparse_vert_stride", 1 << 20},
                                              {"dense_attention_every_n_layers", -1}};
  for (const auto& [key, value] : bad) {
    json file = Phi3Small();
    file[key] = value;
    EXPECT_THAT(Refusal(file), HasSubstr(std::string(key) + ": want")) << value;
  }
}

}  // namespace
}  // namespace quire::engine
