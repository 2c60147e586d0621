// Tests the ModelConfig that is read from the config.json of architectures other than Llama.

#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/engine/model/config_testing.h"
#include "tests/engine/model/layer_windows.h"

namespace quire::engine {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json Mpt() {
  return json::parse(R"({
    "architectures": ["MPTForCausalLM"], "vocab_size": 100, "d_model": 64, "n_heads": 8,
    "n_layers": 2, "expansion_ratio": 3, "max_seq_len": 512, "no_bias": true,
    "norm_type": "low_precision_layernorm", "tie_word_embeddings": true,
    "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 2, "alibi": true,
                    "alibi_bias_max": 16, "clip_qkv": 6, "qk_ln": true, "softmax_scale": 0.25},
    "ffn_config": {"ffn_type": "mptmlp", "ffn_act_fn": {"name": "gelu", "approximate": "tanh"}}})");
}

json Bloom() {
  return json::parse(R"({"architectures": ["BloomForCausalLM"], "vocab_size": 100, "n_embed": 64,
    "num_hidden_layers": 2, "num_attention_heads": 8, "layer_norm_epsilon": 1e-6})");
}

TEST(ArchitecturesTest, ReadsAnMpt) {
  const auto config = Read(Mpt());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "mpt");
  EXPECT_EQ(config->layers[0].feed_forward.inner_size, 192);
  EXPECT_EQ(config->layers[0].attention.num_kv_heads, 2);
  EXPECT_EQ(config->layers[0].attention.key_dim, 8);
  EXPECT_EQ(config->alibi_bias_max, 16.0);
  EXPECT_EQ(config->layers[0].attention.clip, 6.0);
  EXPECT_EQ(config->layers[0].attention.scale, 0.25);
  EXPECT_EQ(config->layers[0].attention.qk_norm, QkNormScope::kToken);
  EXPECT_EQ(config->norm, kernels::NormKind::kLayerNorm);
  EXPECT_EQ(config->layers[0].feed_forward.activation, kernels::Activation::kGeluTanh);
  EXPECT_FALSE(config->norm_bias || config->layers[0].attention.bias ||
               config->layers[0].feed_forward.bias);
}

TEST(ArchitecturesTest, AnMptWithoutSettingsIsTransformersDefault) {
  json file = Mpt();
  file["attn_config"] = {{"alibi", true}};
  file.erase("ffn_config");
  file["no_bias"] = false;
  const auto config = Read(file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers[0].attention.num_kv_heads, 8);
  EXPECT_EQ(config->alibi_bias_max, 8.0);
  EXPECT_EQ(config->layers[0].feed_forward.activation, kernels::Activation::kGelu);
  EXPECT_TRUE(config->norm_bias && config->layers[0].attention.bias &&
              config->layers[0].feed_forward.bias);
}

TEST(ArchitecturesTest, ReadsABloom) {
  const auto config = Read(Bloom());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "bloom");
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->layers[0].feed_forward.inner_size, 256);
  EXPECT_EQ(config->layers[0].attention.num_kv_heads, 8);
  EXPECT_EQ(config->alibi_bias_max, 8.0);
  EXPECT_EQ(config->norm_eps, 1e-6);
  EXPECT_TRUE(config->norm_bias && config->tie_word_embeddings);
}

json Falcon() {
  return json::parse(R"({"architectures": ["FalconForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8})");
}

json GptNeoX() {
  return json::parse(R"({"architectures": ["GPTNeoXForCausalLM"], "vocab_size": 100,
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 8})");
}

TEST(ArchitecturesTest, LayersOfAQwenSlideByTheirTypesOrFromOneOn) {
  json file = json::parse(R"({"architectures": ["Qwen2ForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "sliding_window": 64, "max_window_layers": 1})");
  EXPECT_THAT(LayerWindows(*Read(file)), ::testing::Each(0)) << "without use_sliding_window";
  file["use_sliding_window"] = true;
  const auto config = Read(file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(LayerWindows(*config), ElementsAre(0, 64, 64));
  EXPECT_THAT(DifferentPatterns(*config),
              ElementsAre(kernels::AttentionPattern(), kernels::AttentionPattern::Window(64)));
  file["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(LayerWindows(*Read(file)), ElementsAre(64, 0, 64));
  file.erase("layer_types");
  file["max_window_layers"] = 3;
  EXPECT_THAT(LayerWindows(*Read(file)), ::testing::Each(0));
  file["num_hidden_layers"] = 1000000000;
  EXPECT_THAT(std::string(Read(file).status().message()), HasSubstr("num_hidden_layers"));
}

TEST(ArchitecturesTest, ReadsFalcons) {
  const auto small = Read(Falcon());
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->layers[0].attention.num_kv_heads, 1);
  EXPECT_EQ(small->layers[0].feed_forward.inner_size, 256);
  EXPECT_EQ(small->ropes[0].rope_dim, 8);
  EXPECT_EQ(small->layers[0].residual, Residual::kParallelOneNorm);
  EXPECT_TRUE(small->tie_word_embeddings && small->layers[0].attention.rope == 0);
  EXPECT_FALSE(small->layers[0].attention.bias || small->alibi_bias_max.has_value());

  json file = Falcon();
  file.update({{"new_decoder_architecture", true}, {"num_kv_heads", 4}});
  const auto large = Read(file);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->layers[0].attention.num_kv_heads, 4);
  EXPECT_EQ(large->layers[0].residual, Residual::kParallel);

  file = Falcon();
  file.update({{"alibi", true}, {"multi_query", false}, {"parallel_attn", false}, {"bias", true}});
  const auto rw = Read(file);
  ASSERT_TRUE(rw.ok()) << rw.status();
  EXPECT_EQ(rw->layers[0].attention.num_kv_heads, 8);
  EXPECT_EQ(rw->alibi_bias_max, 8.0);
  EXPECT_TRUE(rw->layers[0].attention.alibi_is_rounded && rw->layers[0].attention.bias &&
              rw->layers[0].feed_forward.bias);
  EXPECT_EQ(rw->layers[0].residual, Residual::kSerial);
  EXPECT_TRUE(rw->ropes.empty() && rw->layers[0].attention.rope == -1);
}

TEST(ArchitecturesTest, ReadsAGptNeoXInEverySpelling) {
  for (const char* edit :
       {R"({"rotary_pct": 0.5, "rotary_emb_base": 5000})",
        R"({"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 5000}})"}) {
    json file = GptNeoX();
    file.merge_patch(json::parse(edit));
    const auto config = Read(file);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->ropes[0].rope_dim, 8);
    EXPECT_EQ(config->ropes[0].theta, 5000.0);
    EXPECT_EQ(config->layers[0].feed_forward.activation, kernels::Activation::kGelu);
    EXPECT_EQ(config->layers[0].residual, Residual::kParallel);
    EXPECT_TRUE(config->layers[0].attention.bias);
  }
}

json Mixtral() {
  return json::parse(R"({"architectures": ["MixtralForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8})");
}

json Qwen3Moe() {
  json file = Mixtral();
  file["architectures"] = {"Qwen3MoeForCausalLM"};
  file.update({{"num_experts", 16}, {"moe_intermediate_size", 32}});
  return file;
}

TEST(ArchitecturesTest, ReadsAMixtral) {
  const auto usual = Read(Mixtral());
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_EQ(usual->layers[0].feed_forward.experts.count, 8);
  EXPECT_EQ(usual->layers[0].feed_forward.experts.per_token, 2);
  EXPECT_EQ(usual->layers[0].feed_forward.experts.weights,
            kernels::ExpertWeights::kSoftmaxOfChosen);
  EXPECT_EQ(usual->layers[0].attention.num_kv_heads, 8);
  EXPECT_EQ(usual->ropes[0].theta, 1e6);
  EXPECT_EQ(usual->norm_eps, 1e-5);
  EXPECT_EQ(usual->layers[0].feed_forward.inner_size, 96);

  json file = Mixtral();
  file.update({{"num_local_experts", 4}, {"num_experts_per_tok", 3}});
  const auto small = Read(file);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->layers[0].feed_forward.experts.count, 4);
  EXPECT_EQ(small->layers[0].feed_forward.experts.per_token, 3);
}

TEST(ArchitecturesTest, ExpertsAreAddedAsTheyAreAfterAttention) {
  auto config = Read(Mixtral());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(Validate(*config, "config.json").ok());
  for (const Residual residual :
       {Residual::kParallel, Residual::kParallelOneNorm, Residual::kPostNorms}) {
    ModelConfig other = *config;
    other.layers.back().residual = residual;
    EXPECT_THAT(Validate(other, "config.json").message(),
                HasSubstr("config.json: num_experts: want 0"));
  }
}

TEST(ArchitecturesTest, LayersMayHaveHeadsOfTheirOwn) {
  auto config = Read(Mixtral());
  ASSERT_TRUE(config.ok()) << config.status();
  for (LayerSpec& layer : config->layers) layer.attention.set_head_dim(16);
  config->ropes[0].rope_dim = 16;
  AttentionSpec& last = config->layers.back().attention;
  EXPECT_TRUE(HeadsAreAlike(*config));
  last.num_kv_heads = last.num_heads;
  last.value_dim = 2 * last.key_dim;
  EXPECT_FALSE(HeadsAreAlike(*config));
  EXPECT_TRUE(Validate(*config, "config.json").ok()) << Validate(*config, "config.json");
  const ModelConfig good = *config;
  const auto message = [&] { return std::string(Validate(*config, "config.json").message()); };
  last.value_dim = 12;
  EXPECT_EQ(message(), "config.json: v_head_dim: want a multiple of 8, got 12");
  last = good.layers.back().attention;
  last.num_kv_heads = last.num_heads - 1;
  EXPECT_THAT(message(), HasSubstr("num_key_value_heads: want a divisor of num_attention_heads"));
  last = good.layers.back().attention;
  // RoPE rotates all 16 elements of a key, so a layer with RoPE must not have shorter keys.
  last.key_dim = 8;
  EXPECT_EQ(message(), "config.json: rope dimensions: want 2 to 8, got 16");
  last.rope = -1;
  EXPECT_EQ(message(), "");
}

TEST(ArchitecturesTest, WithAlibiEveryLayerHasAsManyHeads) {
  auto config = Read(Bloom());
  ASSERT_TRUE(config.ok()) << config.status();
  AttentionSpec& last = config->layers.back().attention;
  last.num_kv_heads = 4;
  EXPECT_TRUE(Validate(*config, "config.json").ok());
  last.num_heads = 4;
  EXPECT_EQ(Validate(*config, "config.json").message(),
            "config.json: num_attention_heads: want 8 in every layer with ALiBi, got 4");
}

TEST(ArchitecturesTest, ALayerHasARopeOfTheModelOrNone) {
  auto config = Read(Mixtral());
  ASSERT_TRUE(config.ok()) << config.status();
  for (const int rope : {-1, 0}) {
    config->layers.back().attention.rope = rope;
    EXPECT_TRUE(Validate(*config, "config.json").ok()) << rope;
  }
  for (const int rope : {-2, 1}) {
    config->layers.back().attention.rope = rope;
    EXPECT_EQ(Validate(*config, "config.json").message(),
              absl::StrCat("config.json: rope of a layer: want -1 to 0, got ", rope));
  }
}

TEST(ArchitecturesTest, ReadsAQwen3MoeInEverySpelling) {
  for (const char* key : {"num_experts", "num_local_experts"}) {
    json file = Qwen3Moe();
    file.erase("num_experts");
    file[key] = 16;
    const auto config = Read(file);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->layers[0].feed_forward.experts.count, 16);
    EXPECT_EQ(config->layers[0].feed_forward.experts.per_token, 8);
    EXPECT_EQ(config->layers[0].feed_forward.experts.weights,
              kernels::ExpertWeights::kSoftmaxOfAll);
    EXPECT_EQ(config->layers[0].feed_forward.inner_size, 32);
    EXPECT_EQ(config->layers[0].attention.qk_norm, QkNormScope::kHead);
  }
}

TEST(ArchitecturesTest, LayersOfAQwen3MoeAreDenseByListOrStep) {
  json file = Qwen3Moe();
  file.update({{"num_hidden_layers", 5}, {"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}});
  const auto config = Read(file);
  ASSERT_TRUE(config.ok()) << config.status();
  std::vector<int64_t> experts, widths;
  for (const LayerSpec& layer : config->layers) {
    experts.push_back(layer.feed_forward.experts.count);
    widths.push_back(layer.feed_forward.inner_size);
  }
  EXPECT_THAT(experts, ElementsAre(0, 16, 0, 0, 0));
  EXPECT_THAT(widths, ElementsAre(96, 32, 96, 96, 96));
}

json Phi3() {
  return json::parse(R"({"architectures": ["Phi3ForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 16384, "sliding_window": 262144, "partial_rotary_factor": 0.75,
    "rope_scaling": {"type": "longrope", "short_factor": [1, 1.5, 2, 2.5, 3, 3.5],
                     "long_factor": [1, 2, 4, 8, 16, 32]}})");
}

TEST(ArchitecturesTest, APhi3HasLongRopeInEverySpelling) {
  json newer = Phi3();
  newer["rope_parameters"] = newer["rope_scaling"];
  newer["rope_parameters"].update(
      {{"rope_type", "longrope"}, {"partial_rotary_factor", 0.75}, {"rope_theta", 10000}});
  newer.erase("rope_scaling");
  newer.erase("partial_rotary_factor");
  json oldest = Phi3();  // this class reads "yarn" as longrope
  oldest["rope_scaling"]["type"] = "yarn";
  for (const json& file : {Phi3(), newer, oldest}) {
    const auto config = Read(file);
    ASSERT_TRUE(config.ok()) << config.status();
    const RopeConfig& rope = config->ropes[0];
    EXPECT_EQ(rope.scaling, RopeScaling::kLongRope);
    EXPECT_EQ(rope.rope_dim, 12);
    EXPECT_EQ(rope.original_max_position_embeddings, 4096);
    EXPECT_EQ(rope.factor, 4.0);
    EXPECT_NEAR(rope.attention_factor, 1.0801234497346435, 1e-15);  // sqrt(1 + ln 4 / ln 4096)
    EXPECT_THAT(rope.short_factors, ElementsAre(1.0, 1.5, 2.0, 2.5, 3.0, 3.5));
    EXPECT_THAT(rope.long_factors, ElementsAre(1.0, 2.0, 4.0, 8.0, 16.0, 32.0));
    EXPECT_THAT(LayerWindows(*config), ::testing::Each(0));
  }
  json file = Phi3();
  file["original_max_position_embeddings"] = 16384;
  EXPECT_EQ(Read(file)->ropes[0].attention_factor, 1.0);
  file["rope_scaling"]["attention_factor"] = 1.25;
  EXPECT_EQ(Read(file)->ropes[0].attention_factor, 1.25);
}

json GptOss() {
  return json::parse(R"({"architectures": ["GptOssForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8,
    "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2})");
}

TEST(ArchitecturesTest, ReadsAGptOss) {
  json file = GptOss();
  const auto usual = Read(file);
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_THAT(LayerWindows(*usual), ElementsAre(128, 0, 128));
  EXPECT_EQ(usual->ropes[0].scaling, RopeScaling::kYarn);
  EXPECT_EQ(usual->ropes[0].factor, 32.0);
  EXPECT_EQ(usual->ropes[0].original_max_position_embeddings, 4096);
  EXPECT_EQ(usual->ropes[0].theta, 150000.0);
  EXPECT_FALSE(usual->ropes[0].truncate);
  EXPECT_TRUE(usual->layers[0].attention.bias && usual->layers[0].attention.sinks);
  const FeedForwardSpec& mlp = usual->layers[0].feed_forward;
  EXPECT_EQ(mlp.activation, kernels::Activation::kClampedSiluMul);
  EXPECT_EQ(mlp.activation_limit, 7.0);
  EXPECT_EQ(mlp.inner_size, 96);
  EXPECT_EQ(mlp.experts.count, 4);
  EXPECT_EQ(mlp.experts.per_token, 2);
  EXPECT_TRUE(mlp.bias && mlp.experts.router_bias);
  EXPECT_EQ(mlp.experts.weights, kernels::ExpertWeights::kSoftmaxOfChosen);
  file.update({{"attention_bias", false},
               {"swiglu_limit", 2.5},
               {"rope_parameters", {{"rope_type", "default"}}},
               {"sliding_window", nullptr}});
  const auto other = Read(file);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->layers[0].feed_forward.activation_limit, 2.5);
  EXPECT_EQ(other->ropes[0].scaling, RopeScaling::kNone);
  EXPECT_THAT(LayerWindows(*other), ::testing::Each(0));
  EXPECT_FALSE(other->layers[0].attention.bias);
}

json SmolLm3() {
  return json::parse(R"({"architectures": ["SmolLM3ForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 8,
    "max_window_layers": 28, "sliding_window": null})");
}

std::vector<int> RopesOf(const ModelConfig& config) {
  std::vector<int> ropes;
  for (const LayerSpec& layer : config.layers) ropes.push_back(layer.attention.rope);
  return ropes;
}

TEST(ArchitecturesTest, LayersOfASmolLm3RotateByListOrInterval) {
  json file = SmolLm3();
  const auto usual = Read(file);
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_THAT(RopesOf(*usual), ElementsAre(0, 0, 0, -1, 0));
  EXPECT_THAT(LayerWindows(*usual), ::testing::Each(0));
  EXPECT_EQ(usual->ropes[0].theta, 2e6);
  EXPECT_EQ(usual->layers[0].attention.num_kv_heads, 4);
  EXPECT_TRUE(usual->tie_word_embeddings);
  file["no_rope_layer_interval"] = 2;
  EXPECT_THAT(RopesOf(*Read(file)), ElementsAre(0, -1, 0, -1, 0));
  file["no_rope_layers"] = {0, 1, 1, 1, 0, 0};  // one more than there are layers
  EXPECT_THAT(RopesOf(*Read(file)), ElementsAre(-1, 0, 0, 0, -1));
  file["sliding_window"] = 64;
  EXPECT_THAT(LayerWindows(*Read(file)), ::testing::Each(0)) << "without use_sliding_window";
  file["use_sliding_window"] = true;
  EXPECT_THAT(LayerWindows(*Read(file)), ElementsAre(64, 0, 0, 0, 64));
  file["layer_types"] = {"full_attention", "full_attention", "sliding_attention", "full_attention",
                         "full_attention"};
  EXPECT_THAT(LayerWindows(*Read(file)), ElementsAre(0, 0, 64, 0, 0));
  file["num_hidden_layers"] = 1000000000;
  EXPECT_THAT(std::string(Read(file).status().message()), HasSubstr("num_hidden_layers"));
}

json Gemma2() {
  return json::parse(R"({"architectures": ["Gemma2ForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "head_dim": 32, "sliding_window": 512, "query_pre_attn_scalar": 64,
    "hidden_act": "gelu_pytorch_tanh"})");
}

// transformers 5 takes rope_scaling where both are written.
TEST(ArchitecturesTest, TwoSpellingsOfTheRotationMustAgree) {
  json file = Mixtral();
  file["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 1e6}};
  file["rope_scaling"] = file["rope_parameters"];
  EXPECT_TRUE(Read(file).ok()) << Read(file).status();
  file["rope_scaling"].erase("rope_theta");
  EXPECT_THAT(std::string(Read(file).status().message()),
              HasSubstr("rope_scaling: want null, or the same as rope_parameters"));
}

TEST(ArchitecturesTest, ACapOfZeroIsNone) {
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"}) {
    json file = Mixtral();
    file[key] = 0.0;
    EXPECT_TRUE(Read(file).ok()) << Read(file).status();
    file[key] = 5.0;
    EXPECT_THAT(std::string(Read(file).status().message()), HasSubstr("want null")) << key;
  }
}

TEST(ArchitecturesTest, CapsOfAGemma2AreThePublishedOnesUnlessWritten) {
  json file = Gemma2();
  const auto usual = Read(file);
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_THAT(LayerWindows(*usual), ElementsAre(512, 0, 512));
  EXPECT_THAT(RopesOf(*usual), ::testing::Each(0));
  EXPECT_EQ(usual->ropes.size(), 1);
  EXPECT_EQ(usual->layers[0].attention.soft_cap, 50.0);
  EXPECT_EQ(usual->logit_soft_cap, 30.0);
  EXPECT_EQ(usual->layers[0].attention.qk_norm, QkNormScope::kNone);
  EXPECT_EQ(usual->layers[0].attention.scale, 0.125);
  EXPECT_EQ(usual->layers[0].residual, Residual::kPostNorms);
  EXPECT_EQ(usual->embedding_scale, 8.0);
  EXPECT_EQ(usual->norm_weight_offset, 1.0);
  file.update({{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", 7.5}});
  EXPECT_EQ(Read(file)->layers[0].attention.soft_cap, 0.0);
  EXPECT_EQ(Read(file)->logit_soft_cap, 7.5);
}

json Gemma3() {
  return json::parse(R"({"architectures": ["Gemma3ForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 32, "sliding_window": 512, "query_pre_attn_scalar": 64,
    "rope_theta": 1e6, "rope_local_base_freq": 1e4})");
}

TEST(ArchitecturesTest, ReadsAGemma3InBothSpellings) {
  json newer = Gemma3();
  newer.erase("rope_theta");
  newer.erase("rope_local_base_freq");
  newer["rope_parameters"] = json::parse(R"({
    "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})");
  json older = Gemma3();
  older["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8}};
  for (const json& file : {older, newer}) {
    const auto config = Read(file);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_THAT(LayerWindows(*config), ElementsAre(512, 512, 512, 512, 512, 0, 512));
    EXPECT_EQ(config->ropes[0].theta, 1e6);
    EXPECT_EQ(config->ropes[0].factor, 8.0);
    ASSERT_EQ(config->ropes.size(), 2);
    EXPECT_EQ(config->ropes[1].theta, 1e4);
    EXPECT_EQ(config->ropes[1].scaling, RopeScaling::kNone);
    for (const LayerSpec& layer : config->layers) {
      EXPECT_EQ(layer.attention.rope, layer.attention.pattern.sees_all() ? 0 : 1);
    }
    EXPECT_EQ(config->layers[0].attention.scale, 0.125);
    EXPECT_EQ(config->embedding_scale, 8.0);
    EXPECT_EQ(config->norm_weight_offset, 1.0);
    EXPECT_EQ(config->layers[0].residual, Residual::kPostNorms);
    EXPECT_TRUE(config->tie_word_embeddings);
  }
}

json Gemma3Images() {
  json text = Gemma3();
  text.erase("architectures");
  return {{"architectures", {"Gemma3ForConditionalGeneration"}},
          {"vision_config", {{"hidden_size", 1152}}},
          {"text_config", text}};
}

TEST(ArchitecturesTest, OfAGemma3WithImagesTheTextIsRead) {
  const auto config = Read(Gemma3Images());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->vocab_size, 100);
  EXPECT_EQ(config->layers[0].attention.qk_norm, QkNormScope::kHead);
  EXPECT_TRUE(config->has_images && config->tie_word_embeddings);
  json sparse = Gemma3Images();  // as published: without the fields that have default values
  sparse["text_config"] = {{"hidden_size", 2560},
                           {"num_hidden_layers", 34},
                           {"intermediate_size", 10240},
                           {"sliding_window", 1024}};
  sparse["tie_word_embeddings"] = false;
  const auto published = Read(sparse);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ(published->vocab_size, 262208);
  EXPECT_EQ(published->layers[0].attention.num_heads, 8);
  EXPECT_EQ(published->layers[0].attention.num_kv_heads, 4);
  EXPECT_EQ(published->layers[0].attention.key_dim, 256);
  EXPECT_FALSE(published->tie_word_embeddings);
}

json Gpt2() {
  return json::parse(R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 100, "n_embd": 64,
    "n_layer": 2, "n_head": 4, "n_positions": 128})");
}

TEST(ArchitecturesTest, ReadsAGpt2) {
  const auto config = Read(Gpt2());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->learned_positions && config->norm_bias && config->layers[0].attention.bias);
  EXPECT_EQ(config->max_position_embeddings, 128);
  EXPECT_EQ(config->layers[0].feed_forward.inner_size, 256);
  EXPECT_EQ(config->layers[0].feed_forward.activation, kernels::Activation::kGeluTanh);
}

json Baichuan() {
  return json::parse(R"({"architectures": ["BaichuanForCausalLM"], "vocab_size": 64000,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "model_max_length": 512})");
}

TEST(ArchitecturesTest, BaichuansDifferByContextAndVocabulary) {
  json file = Baichuan();
  const auto first = Read(file);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->alibi_bias_max, 8.0);
  EXPECT_EQ(first->max_position_embeddings, 512);
  EXPECT_FALSE(first->unit_head_rows);
  file["vocab_size"] = 125696;
  file["max_position_embeddings"] = 1024;
  const auto second = Read(file);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_FALSE(second->alibi_bias_max.has_value());
  EXPECT_EQ(second->max_position_embeddings, 1024);
  EXPECT_TRUE(second->unit_head_rows);
}

json Refact() {
  return json::parse(R"({"architectures": ["GPTRefactForCausalLM"], "vocab_size": 100,
    "n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 512})");
}

TEST(ArchitecturesTest, ReadsARefact) {
  const auto config = Read(Refact());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers[0].attention.num_kv_heads, 1);
  EXPECT_EQ(config->layers[0].feed_forward.inner_size, 256);
  EXPECT_EQ(config->alibi_bias_max, 8.0);
}

json OpenElm() {
  return json::parse(R"({"architectures": ["OpenELMForCausalLM"], "vocab_size": 100,
    "model_dim": 1280, "num_transformer_layers": 3, "head_dim": 64, "num_query_heads": [12, 16, 20],
    "num_kv_heads": [3, 4, 5], "ffn_multipliers": [0.5, 0.73, 4.0], "ffn_dim_divisor": 256,
    "ffn_with_glu": true, "activation_fn_name": "swish", "normalization_layer_name": "rms_norm",
    "normalize_qk_projections": true, "share_input_output_layers": true, "num_gqa_groups": 4,
    "qkv_multipliers": [0.5, 1.0], "max_context_length": 2048, "rope_freq_constant": 10000,
    "rope_max_length": 4096})");
}

json Mimo() {
  return json::parse(R"({"architectures": ["MiMoV2FlashForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 192, "v_head_dim": 128, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "sliding_window": 128})");
}

TEST(ArchitecturesTest, ReadsAMimoV2Flash) {
  const auto config = Read(Mimo());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->norm_eps, 1e-5);
  EXPECT_EQ(config->max_position_embeddings, 131072);
  EXPECT_FALSE(config->tie_word_embeddings);
  ASSERT_EQ(config->ropes.size(), 2);
  EXPECT_EQ(config->ropes[0].theta, 5e6);
  EXPECT_EQ(config->ropes[1].theta, 1e4);
  for (size_t i = 0; i < 7; ++i) {
    SCOPED_TRACE(i);
    const bool full = i == 0 || i == 5;
    const AttentionSpec& attention = config->layers[i].attention;
    EXPECT_EQ(attention.pattern, kernels::AttentionPattern::Window(full ? 0 : 128));
    EXPECT_EQ(attention.num_heads, 8);
    EXPECT_EQ(attention.num_kv_heads, full ? 2 : 4);
    EXPECT_EQ(attention.key_dim, 192);
    EXPECT_EQ(attention.value_dim, 128);
    EXPECT_EQ(attention.value_scale, 0.707);
    EXPECT_EQ(attention.sinks, !full);
    EXPECT_EQ(attention.rope, full ? 0 : 1);
    EXPECT_EQ(config->ropes[attention.rope].rope_dim, 64);
    const FeedForwardSpec& feed_forward = config->layers[i].feed_forward;
    EXPECT_EQ(feed_forward.inner_size, i == 0 ? 96 : 32);
    EXPECT_EQ(feed_forward.experts.count, i == 0 ? 0 : 6);
    EXPECT_EQ(feed_forward.experts.choice_bias, i != 0);
  }
}

// The published config.json has keys that transformers derives, and another key for the window,
// which counts the tokens before the query.
TEST(ArchitecturesTest, ReadsThePublishedKeysOfAMimoV2Flash) {
  json file = Mimo();
  file.update(json::parse(R"({"swa_num_attention_heads": 8, "swa_num_key_value_heads": 4,
    "swa_head_dim": 192, "swa_v_head_dim": 128, "layernorm_epsilon": 1e-05, "rope_theta": 5000000,
    "swa_rope_theta": 10000, "partial_rotary_factor": 0.334, "add_swa_attention_sink_bias": true,
    "add_full_attention_sink_bias": false, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "n_shared_experts": null, "routed_scaling_factor": null, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": true, "attention_value_scale": null, "sliding_window_size": 128,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1], "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1]})"));
  const auto config = Read(file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers[1].attention.pattern.tokens, 129);
  EXPECT_EQ(config->layers[1].attention.value_scale, 1.0);
}

TEST(ArchitecturesTest, ReadsAnOpenElmLayerByLayer) {
  const auto config = Read(OpenElm());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "openelm");
  EXPECT_EQ(config->max_position_embeddings, 2048);
  EXPECT_EQ(config->ropes[0].rope_dim, 64);
  EXPECT_EQ(config->norm_eps, 1e-6);
  EXPECT_TRUE(config->tie_word_embeddings);
  std::vector<int64_t> sizes;
  for (const LayerSpec& layer : config->layers) {
    EXPECT_EQ(layer.attention.qk_norm, QkNormScope::kHead);
    EXPECT_EQ(layer.attention.value_dim, 64);
    for (const int64_t size :
         {layer.attention.num_heads, layer.attention.num_kv_heads, layer.feed_forward.inner_size}) {
      sizes.push_back(size);
    }
  }
  // 0.73 * 1280 = 934.4 is nearer to 1024 than to 768.
  EXPECT_THAT(sizes, ElementsAre(12, 3, 768, 16, 4, 1024, 20, 5, 5120));
  EXPECT_EQ(KvElementsPerToken(*config), 2 * 64 * (3 + 4 + 5));

  json one = OpenElm();
  one["ffn_multipliers"] = 1.5;
  one["normalize_qk_projections"] = false;
  const auto alike = Read(one);
  ASSERT_TRUE(alike.ok()) << alike.status();
  EXPECT_EQ(alike->layers[2].feed_forward.inner_size, 2048);
  EXPECT_EQ(alike->layers[2].attention.qk_norm, QkNormScope::kNone);
}

struct ArchitectureRefusal {
  std::string name;
  json file;
  std::string edit;  // a JSON merge patch of `file`
  std::string field, problem;
};
void PrintTo(const ArchitectureRefusal& refusal, std::ostream* out) { *out << refusal.name; }

const ArchitectureRefusal kArchitectureRefusals[] = {
    {"NoAlibi", Mpt(), R"({"attn_config": {"alibi": false}})", "attn_config: alibi", "learned"},
    {"NoAttention", Mpt(), R"({"attn_config": null})", "attn_config", "an object"},
    {"AttentionIsText", Mpt(), R"({"attn_config": "alibi"})", "attn_config", "an object"},
    {"UnknownAttention", Mpt(), R"({"attn_config": {"attn_type": "linear"}})", "attn_type",
     "got \\\"linear\\\""},
    {"GroupsUnsaid", Mpt(), R"({"attn_config": {"kv_n_heads": null}})", "kv_n_heads", "an integer"},
    {"GroupsUneven", Mpt(), R"({"attn_config": {"kv_n_heads": 3}})", "num_key_value_heads",
     "got 3"},
    {"Prefix", Mpt(), R"({"attn_config": {"prefix_lm": true}})", "prefix_lm", "false"},
    {"Window", Mpt(), R"({"attn_config": {"sliding_window_size": 64}})", "sliding_window_size",
     "got 64"},
    {"QkLnBesideBiases", Mpt(), R"({"no_bias": false})", "qk_ln", "biases"},
    {"RmsNorm", Mpt(), R"({"norm_type": "rmsnorm"})", "norm_type", "rmsnorm"},
    {"GatedFeedForward", Mpt(), R"({"ffn_config": {"ffn_type": "mptglu"}})", "ffn_type", "mptglu"},
    {"Relu", Mpt(), R"({"ffn_config": {"ffn_act_fn": {"name": "relu"}}})", "ffn_act_fn: name",
     "relu"},
    {"LogitScale", Mpt(), R"({"logit_scale": "inv_sqrt_d_model"})", "logit_scale", "null"},
    {"UnevenHeads", Mpt(), R"({"n_heads": 5})", "n_heads", "a divisor of d_model"},
    {"NarrowHeads", Mpt(), R"({"n_heads": 16})", "head_dim", "got 4"},
    {"BloomPostNorm", Bloom(), R"({"apply_residual_connection_post_layernorm": true})",
     "apply_residual_connection_post_layernorm", "false"},
    {"MimoOtherHeadsInWindows", Mimo(), R"({"swa_num_attention_heads": 4})",
     "swa_num_attention_heads", "want 8"},
    {"MimoOtherKvHeadsInWindows", Mimo(), R"({"swa_num_key_value_heads": 2})",
     "swa_num_key_value_heads", "want 4"},
    {"MimoOtherValuesInWindows", Mimo(), R"({"swa_v_head_dim": 64})", "swa_v_head_dim", "want 128"},
    {"MimoOtherWindows", Mimo(), R"({"hybrid_layer_pattern": [0, 1, 1, 1, 0, 1, 1]})",
     "hybrid_layer_pattern", "want [0,1,1,1,1,0,1]"},
    {"MimoOtherMixtures", Mimo(), R"({"moe_layer_freq": [1, 1, 1, 1, 1, 1, 1]})", "moe_layer_freq",
     "want [0,1,1,1,1,1,1]"},
    {"MimoOtherTheta", Mimo(), R"({"rope_theta": 640000})", "rope_theta", "got 640000"},
    {"MimoSinksEverywhere", Mimo(), R"({"add_full_attention_sink_bias": true})",
     "add_full_attention_sink_bias", "want false"},
    {"MimoNoWindow", Mimo(), R"({"sliding_window": -9223372036854775808})", "sliding_window",
     "at least 1"},
    {"MimoWindowBeyondPositions", Mimo(), R"({"sliding_window_size": 9223372036854775807})",
     "sliding_window_size", "below 2^31 - 1"},
    {"MimoKvHeadsBeyondAll", Mimo(), R"({"num_key_value_heads": 9223372036854775807})",
     "num_key_value_heads", "at least 1"},
    {"MimoGroups", Mimo(), R"({"n_group": 2})", "n_group", "want 1"},
    {"MimoScaledExperts", Mimo(), R"({"routed_scaling_factor": 2.5})", "routed_scaling_factor",
     "want 1"},
    {"MimoUnnormedExperts", Mimo(), R"({"norm_topk_prob": false})", "norm_topk_prob", "want true"},
    {"MimoSharedExpert", Mimo(), R"({"n_shared_experts": 1})", "n_shared_experts", "want 0"},
    {"MimoSoftmax", Mimo(), R"({"scoring_func": "softmax"})", "scoring_func", "sigmoid"},
    {"MimoNetworks", Mimo(), R"({"mlp_layer_types": ["dense"]})", "mlp_layer_types",
     "one for each"},
    {"MimoUnknownNetwork", Mimo(),
     R"({"mlp_layer_types": ["dense", "sparse", "dense", "linear", "dense", "dense", "dense"]})",
     "mlp_layer_types", "dense and sparse"},
    {"MimoScaling", Mimo(), R"({"rope_scaling": {"rope_type": "yarn", "factor": 4}})",
     "rope_scaling", "want null"},
    {"MimoOtherPart", Mimo(), R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor",
     "got 0.5"},
    {"MimoYarn", Mimo(),
     R"({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4,
         "original_max_position_embeddings": 32}, "sliding_attention": {}}})",
     "rope_type", "default"},
    {"MimoRopeOfOneKind", Mimo(), R"({"rope_parameters": {"full_attention": {}}})",
     "sliding_attention", "an object"},
    {"MimoValuesTooLong", Mimo(), R"({"v_head_dim": 264})", "v_head_dim", "want 8 to 256, got 264"},
    {"OpenElmHeadsUnsaid", OpenElm(), R"({"num_query_heads": null})", "num_query_heads",
     "a number for each"},
    {"OpenElmKvHeadsOfFewerLayers", OpenElm(), R"({"num_kv_heads": [3, 4]})", "num_kv_heads",
     "a number for each"},
    {"OpenElmHeadsThatAreNone", OpenElm(), R"({"num_kv_heads": [3, 0, 5]})", "num_key_value_heads",
     "want 1 to 16, got 0"},
    {"OpenElmUnevenGroups", OpenElm(), R"({"num_kv_heads": [3, 5, 5]})", "num_key_value_heads",
     "divisor of num_attention_heads 16, got 5"},
    {"OpenElmSizesFromTwo", OpenElm(), R"({"ffn_multipliers": [0.5, 4.0]})", "ffn_multipliers",
     "a number for each"},
    {"OpenElmNegativeSize", OpenElm(), R"({"ffn_multipliers": [0.5, -1, 4.0]})", "ffn_multipliers",
     "a number for each"},
    {"OpenElmNoDivisor", OpenElm(), R"({"ffn_dim_divisor": 0})", "ffn_dim_divisor", "at least 1"},
    {"OpenElmWidthBeyondAll", OpenElm(), R"({"model_dim": 9223372036854775807})", "model_dim",
     "at least 1"},
    {"OpenElmNoGate", OpenElm(), R"({"ffn_with_glu": false})", "ffn_with_glu", "true"},
    {"OpenElmHeadOfItsOwn", OpenElm(), R"({"share_input_output_layers": false})",
     "share_input_output_layers", "true"},
    {"OpenElmActivation", OpenElm(), R"({"activation_fn_name": "gelu"})", "activation_fn_name",
     "swish"},
    {"OpenElmNorm", OpenElm(), R"({"normalization_layer_name": "layer_norm"})",
     "normalization_layer_name", "rms_norm"},
    {"FalconScaling", Falcon(), R"({"rope_scaling": {"type": "linear", "factor": 2}})",
     "rope_scaling", "null"},
    {"FalconActivation", Falcon(), R"({"activation": "relu"})", "activation", "gelu"},
    {"NeoXActivation", GptNeoX(), R"({"hidden_act": "silu"})", "hidden_act", "gelu_new"},
    {"NeoXScaling", GptNeoX(), R"({"rope_parameters": {"rope_type": "yarn", "factor": 4}})",
     "rope_parameters: rope_type", "default"},
    {"NeoXTurnsNothing", GptNeoX(), R"({"rotary_pct": 0})", "rotary_pct", "more than 0"},
    {"MoreChosenThanExperts", Mixtral(), R"({"num_experts_per_tok": 9})", "num_experts_per_tok",
     "want 1 to 8, got 9"},
    {"NoExpertChosen", Mixtral(), R"({"num_experts_per_tok": 0})", "num_experts_per_tok", "got 0"},
    {"TooManyExperts", Mixtral(), R"({"num_local_experts": 1025})", "num_experts", "got 1025"},
    {"DenseLayerThatIsNone", Qwen3Moe(), R"({"mlp_only_layers": [1, 2]})", "mlp_only_layers",
     "numbers of layers"},
    {"DenseLayersAreANumber", Qwen3Moe(), R"({"mlp_only_layers": 1})", "mlp_only_layers", "a list"},
    {"NoStep", Qwen3Moe(), R"({"decoder_sparse_step": 0})", "decoder_sparse_step", "at least 1"},
    {"GemmaSoftCap", Gemma3(), R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping",
     "null"},
    {"NegativeCap", Gemma2(), R"({"attn_logit_softcapping": -1})", "attn_logit_softcapping",
     "got -1"},
    {"HugeLogitCap", Gemma2(), R"({"final_logit_softcapping": 1e9})", "final_logit_softcapping",
     "got 1e+09"},
    {"Gemma2BothWays", Gemma2(), R"({"use_bidirectional_attention": true})",
     "use_bidirectional_attention", "false"},
    {"GemmaBothWays", Gemma3(), R"({"use_bidirectional_attention": true})",
     "use_bidirectional_attention", "false"},
    {"GemmaActivation", Gemma3(), R"({"hidden_activation": "gelu"})", "hidden_activation",
     "gelu_pytorch_tanh"},
    {"GemmaFlatRope", Gemma3(), R"({"rope_parameters": {"rope_type": "default"}})", "rope_type",
     "sliding_attention alone"},
    {"GemmaWithoutWindow", Gemma3(), R"({"sliding_window": 0})", "sliding_window", "at least 1"},
    {"GemmaLayerTypes", Gemma3(), R"({"layer_types": ["full_attention"]})", "layer_types",
     "one for each"},
    {"LongRopeFactorsTooFew", Phi3(), R"({"rope_scaling": {"long_factor": [1, 2, 4, 8, 16]}})",
     "rope long_factor", "want 6 numbers, got 5"},
    {"LongRopeFactorOfNothing", Phi3(), R"({"rope_scaling": {"short_factor": [1, 1, 1, 1, 0, 1]}})",
     "rope short_factor", "got 0"},
    {"LongRopeFactorIsText", Phi3(), R"({"rope_scaling": {"short_factor": ["1"]}})", "short_factor",
     "a list of numbers"},
    {"LongRopeTwoContexts", Phi3(),
     R"({"rope_scaling": {"original_max_position_embeddings": 8192}})",
     "original_max_position_embeddings", "the 4096 outside"},
    {"LongRopeScales", Phi3(), R"({"rope_scaling": {"short_mscale": 1.2}})", "short_mscale",
     "null"},
    {"LinearPhi3", Phi3(), R"({"rope_scaling": {"type": "linear"}})", "rope_type", "longrope"},
    {"RotatesMoreThanAll", Phi3(), R"({"partial_rotary_factor": 1.5})", "partial_rotary_factor",
     "0 to 1"},
    {"PackedWeights", GptOss(), R"({"quantization_config": {"quant_method": "mxfp4"}})",
     "quantization_config", "got mxfp4"},
    {"OtherSwish", GptOss(), R"({"swiglu_alpha": 1.5})", "swiglu_alpha", "1.702"},
    {"NothingPassesTheClamp", GptOss(), R"({"swiglu_limit": 0})", "swiglu_limit", "got 0"},
    {"GptOssWithoutExperts", GptOss(), R"({"num_local_experts": 0})", "num_local_experts",
     "at least 1"},
    {"RotatingLayersTooFew", SmolLm3(), R"({"no_rope_layers": [1, 1, 1, 0]})", "no_rope_layers",
     "for each of num_hidden_layers"},
    {"RotatesALittle", SmolLm3(), R"({"no_rope_layers": [1, 1, 1, 0.5, 1]})", "no_rope_layers",
     "0 and 1"},
    {"WindowsUnused", SmolLm3(),
     R"({"use_sliding_window": false, "sliding_window": 19, "layer_types": ["full_attention",
         "full_attention", "full_attention", "sliding_attention", "full_attention"]})",
     "use_sliding_window", "true beside layer_types"},
    {"NeverRotates", SmolLm3(), R"({"no_rope_layer_interval": 0})", "no_rope_layer_interval",
     "at least 1"},
    {"ImagesWithoutText", Gemma3Images(), R"({"text_config": null})", "text_config", "an object"},
    {"SoftCapInside", Gemma3Images(), R"({"text_config": {"final_logit_softcapping": 30}})",
     "text_config: final_logit_softcapping", "null"},
    {"TiedInsideAlone", Gemma3Images(),
     R"({"text_config": {"tie_word_embeddings": true}, "tie_word_embeddings": false})",
     "text_config: tie_word_embeddings", "false, as outside"},
    {"Gpt2Scale", Gpt2(), R"({"scale_attn_by_inverse_layer_idx": true})",
     "scale_attn_by_inverse_layer_idx", "false"},
    {"Gpt2Activation", Gpt2(), R"({"activation_function": "relu"})", "activation_function", "relu"},
    {"RefactHeads", Refact(), R"({"multi_query": false})", "multi_query", "true"},
    {"BaichuanExperts", Baichuan(), R"({"num_experts": 8})", "num_experts", "mixture"},
    {"BloomWithoutWidth", Bloom(), R"({"n_embed": null})", "n_embed", "got nothing"},
};

class ArchitectureRefusalTest : public ::testing::TestWithParam<ArchitectureRefusal> {};

TEST_P(ArchitectureRefusalTest, NamesTheField) {
  json file = GetParam().file;
  ASSERT_TRUE(Read(file).ok());
  file.merge_patch(json::parse(GetParam().edit));
  const auto config = Read(file);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(config.status().message()),
              AllOf(HasSubstr("config.json: "), HasSubstr(GetParam().field),
                    HasSubstr(GetParam().problem)));
}

INSTANTIATE_TEST_SUITE_P(All, ArchitectureRefusalTest, ::testing::ValuesIn(kArchitectureRefusals),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire::engine
