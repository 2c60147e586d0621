// Tests how the config.json and the GGUF metadata of Llama 4 are read.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/engine/model/config_testing.h"
#include "tests/engine/model/layer_windows.h"
#include "tests/files/gguf_writer.h"
#include "tests/testing/temp_directory.h"

namespace quire::engine {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Pattern = kernels::AttentionPattern;

json Llama4() {
  return json::parse(R"({"architectures": ["Llama4ForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 8,
    "head_dim": 16})");
}

template <typename F>
auto ByLayer(const ModelConfig& config, F of_layer) {
  std::vector<decltype(of_layer(config.layers[0]))> all;
  for (const LayerSpec& layer : config.layers) all.push_back(of_layer(layer));
  return all;
}

TEST(Llama4ConfigTest, WhatIsNotWrittenIsAsInThePublishedClass) {
  const auto config = Read(Llama4());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ropes[0].layout, kernels::RopeLayout::kInterleaved);
  EXPECT_EQ(config->ropes[0].theta, 500000.0);
  EXPECT_EQ(config->max_position_embeddings, 131072);
  EXPECT_FALSE(config->tie_word_embeddings);
  const auto patterns = ByLayer(*config, [](const LayerSpec& l) { return l.attention.pattern; });
  const auto chunks = Pattern::Chunk(8192);
  EXPECT_THAT(patterns, ElementsAre(chunks, chunks, chunks, Pattern(), chunks));
  EXPECT_THAT(ByLayer(*config, [](const LayerSpec& l) { return l.attention.rope; }),
              ElementsAre(0, 0, 0, -1, 0));
  const AttentionSpec &rotated = config->layers[0].attention, &other = config->layers[3].attention;
  EXPECT_EQ(rotated.qk_norm, QkNormScope::kHeadUnweighted);
  EXPECT_EQ(rotated.query_growth.interval, 0);
  EXPECT_EQ(other.qk_norm, QkNormScope::kNone);
  EXPECT_EQ(other.query_growth, (QueryGrowth{.interval = 8192, .rate = 0.1}));
  EXPECT_FALSE(rotated.bias);
  EXPECT_EQ(rotated.num_kv_heads, 8);
  const FeedForwardSpec& mixture = config->layers[0].feed_forward;
  EXPECT_EQ(mixture.inner_size, 96);
  EXPECT_EQ(mixture.experts, (ExpertsSpec{.count = 16,
                                          .per_token = 1,
                                          .weights = kernels::ExpertWeights::kLogistic,
                                          .weights_scale_input = true,
                                          .shared_inner_size = 96}));
  EXPECT_THAT(ByLayer(*config, [](const LayerSpec& l) { return l.has_experts(); }), Each(true));
}

TEST(Llama4ConfigTest, LayersFollowListsAndSteps) {
  json file = Llama4();
  file.update({{"interleave_moe_layer_step", 2}, {"intermediate_size_mlp", 80}});
  const auto inner = [](const LayerSpec& l) { return l.feed_forward.dense_inner_size(); };
  EXPECT_THAT(ByLayer(*Read(file), inner), ElementsAre(80, 96, 80, 96, 80));
  file["moe_layers"] = {4, 0};
  EXPECT_THAT(ByLayer(*Read(file), inner), ElementsAre(96, 80, 80, 80, 96));
  file["moe_layers"] = json::array();
  EXPECT_THAT(ByLayer(*Read(file), [](const LayerSpec& l) { return l.has_experts(); }),
              Each(false));

  const auto ropes = [](const LayerSpec& l) { return l.attention.rope; };
  file.update({{"no_rope_layers", json::array()}, {"no_rope_layer_interval", 2}});
  EXPECT_THAT(ByLayer(*Read(file), ropes), ElementsAre(0, -1, 0, -1, 0)) << "an empty list is none";
  file.update({{"no_rope_layers", {0, 1, 1, 1, 0}}, {"attention_chunk_size", 64}});
  EXPECT_THAT(ByLayer(*Read(file), ropes), ElementsAre(-1, 0, 0, 0, -1));
  EXPECT_THAT(LayerWindows(*Read(file)), ElementsAre(0, 64, 64, 64, 0));
  file["layer_types"] = {"chunked_attention", "full_attention", "full_attention", "full_attention",
                         "chunked_attention"};
  EXPECT_THAT(LayerWindows(*Read(file)), ElementsAre(64, 0, 0, 0, 64));

  file.update({{"use_qk_norm", false}, {"attn_temperature_tuning", false}});
  const auto plain = Read(file);
  EXPECT_THAT(ByLayer(*plain, [](const LayerSpec& l) { return l.attention.qk_norm; }),
              Each(QkNormScope::kNone));
  EXPECT_THAT(ByLayer(*plain, [](const LayerSpec& l) { return l.attention.query_growth.interval; }),
              Each(0));
  file["num_hidden_layers"] = 1000000000;
  EXPECT_THAT(Refusal(file), HasSubstr("num_hidden_layers"));
}

TEST(Llama4ConfigTest, TheTextModelOfAModelWithImagesIsRead) {
  json text = Llama4();
  text.erase("architectures");
  json file = {{"architectures", {"Llama4ForConditionalGeneration"}}, {"text_config", text}};
  const auto config = Read(file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->has_images);
  EXPECT_EQ(config->layers, Read(Llama4())->layers);
  file["text_config"]["tie_word_embeddings"] = true;
  EXPECT_THAT(Refusal(file), HasSubstr("text_config: tie_word_embeddings"));
}

// The fields of Scout's published config.json.
TEST(Llama4ConfigTest, ScoutIsRead) {
  const auto config = Read(json::parse(R"({
    "architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 200080,
    "eoi_token_index": 200081, "image_token_index": 200092, "model_type": "llama4",
    "text_config": {
      "attention_bias": false, "attention_chunk_size": 8192, "attention_dropout": 0.0,
      "bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008],
      "for_llm_compressor": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
      "initializer_range": 0.02, "interleave_moe_layer_step": 1, "intermediate_size": 8192,
      "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760,
      "model_type": "llama4_text", "no_rope_layers": [], "num_attention_heads": 40,
      "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
      "num_local_experts": 16, "output_router_logits": false, "pad_token_id": 200018,
      "rms_norm_eps": 1e-05,
      "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                       "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
      "torch_dtype": "bfloat16", "use_cache": true, "use_qk_norm": true, "vocab_size": 202048},
    "torch_dtype": "bfloat16", "vision_config": {"model_type": "llama4_vision_model"}})"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_layers(), 48);
  EXPECT_EQ(config->ropes[0].scaling, RopeScaling::kLlama3);
  EXPECT_EQ(config->max_position_embeddings, 10485760);
  const auto rotates = ByLayer(*config, [](const LayerSpec& l) { return l.attention.rope == 0; });
  EXPECT_EQ(std::ranges::count(rotates, true), 36);
}

TEST(Llama4ConfigTest, RefusalsNameTheField) {
  struct Refused {
    const char *edit, *field, *problem;
  };
  const Refused cases[] = {
      {R"({"attention_chunk_size": 0})", "attention_chunk_size", "at least 1"},
      {R"({"attention_chunk_size": 2147483648})", "attention_chunk_size", "got 2147483648"},
      {R"({"floor_scale": 0})", "floor_scale", "at least 1"},
      {R"({"attn_scale": -0.1})", "rate of query growth", "got -0.1"},
      {R"({"num_local_experts": 0})", "num_local_experts", "at least 1"},
      {R"({"num_experts_per_tok": 17})", "num_experts_per_tok", "got 17"},
      {R"({"interleave_moe_layer_step": 0})", "interleave_moe_layer_step", "at least 1"},
      {R"({"moe_layers": [5]})", "moe_layers", "numbers of layers"},
      {R"({"moe_layers": 2})", "moe_layers", "a list"},
      {R"({"no_rope_layers": [1, 0]})", "no_rope_layers", "for each of num_hidden_layers"},
      {R"({"layer_types": ["sliding_attention", "full_attention", "full_attention",
                           "full_attention", "full_attention"]})",
       "layer_types", "full_attention and chunked_attention"},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})", "rope_scaling", "llama3"},
      {R"({"hidden_act": "gelu"})", "hidden_act", "silu"},
      {R"({"intermediate_size_mlp": 0, "moe_layers": [0]})", "intermediate_size", "got 0"},
  };
  for (const Refused& refused : cases) {
    json file = Llama4();
    file.merge_patch(json::parse(refused.edit));
    EXPECT_EQ(Read(file).status().code(), absl::StatusCode::kInvalidArgument) << refused.edit;
    EXPECT_THAT(Refusal(file), AllOf(HasSubstr("config.json: "), HasSubstr(refused.field),
                                     HasSubstr(refused.problem)))
        << refused.edit;
  }
  json file = Llama4();
  file["attention_chunk_size"] = nullptr;
  EXPECT_THAT(Refusal(file), HasSubstr("attention_chunk_size"));
}

// Reads a GGUF file that has the keys of Llama 4 and no tensors. `edit` may add further keys. If it
// is empty, every second layer is a mixture of experts.
absl::StatusOr<ModelConfig> ReadGguf(const std::function<void(testing::GgufWriter&)>& edit = {},
                                     uint32_t num_experts = 16) {
  testing::GgufWriter writer;
  writer.String("general.architecture", "llama4");
  writer.U32("llama4.block_count", 5).U32("llama4.embedding_length", 64);
  writer.U32("llama4.feed_forward_length", 96).U32("llama4.attention.head_count", 4);
  writer.U32("llama4.attention.head_count_kv", 2).U32("llama4.context_length", 128);
  writer.U32("llama4.vocab_size", 100).F32("llama4.attention.layer_norm_rms_epsilon", 1e-5F);
  writer.U32("llama4.expert_count", num_experts).U32("llama4.expert_used_count", 1);
  writer.U32("llama4.expert_feed_forward_length", 40);
  if (edit) {
    edit(writer);
  } else {
    writer.U32("llama4.interleave_moe_layer_step", 2);
  }
  const testing::TempDirectory directory;
  const auto model = files::OpenModelFiles(directory.Write("m.gguf", writer.Build()));
  if (!model.ok()) return model.status();
  return ReadModelConfig(*model);
}

TEST(Llama4ConfigTest, AGgufFileIsAPublishedModel) {
  const auto config = ReadGguf();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ropes[0].layout, kernels::RopeLayout::kInterleaved);
  EXPECT_THAT(LayerWindows(*config), ElementsAre(8192, 8192, 8192, 0, 8192));
  EXPECT_EQ(config->layers[0].attention.pattern, Pattern::Chunk(8192));
  EXPECT_THAT(ByLayer(*config, [](const LayerSpec& l) { return l.attention.rope; }),
              ElementsAre(0, 0, 0, -1, 0));
  EXPECT_EQ(config->layers[0].attention.qk_norm, QkNormScope::kHeadUnweighted);
  EXPECT_EQ(config->layers[3].attention.query_growth, (QueryGrowth{.interval = 8192, .rate = 0.1}));
  EXPECT_THAT(
      ByLayer(*config, [](const LayerSpec& l) { return l.feed_forward.dense_inner_size(); }),
      ElementsAre(96, 40, 96, 40, 96));
  EXPECT_EQ(config->layers[1].feed_forward.experts,
            (ExpertsSpec{.count = 16,
                         .per_token = 1,
                         .weights = kernels::ExpertWeights::kLogistic,
                         .weights_scale_input = true,
                         .shared_inner_size = 40}));
  const auto maverick = ReadGguf({}, 128);
  EXPECT_EQ(maverick->layers[0].attention.qk_norm, QkNormScope::kNone);
}

TEST(Llama4ConfigTest, OtherGgufFilesAreRefusedByTheirKeys) {
  const auto refusal = [](const char* key, uint32_t value, uint32_t num_experts = 16) {
    const auto config = ReadGguf(
        [&](testing::GgufWriter& writer) {
          if (std::string(key) != "llama4.interleave_moe_layer_step") {
            writer.U32("llama4.interleave_moe_layer_step", 1);
          }
          writer.U32(key, value);
        },
        num_experts);
    return std::string(config.status().message());
  };
  EXPECT_THAT(refusal("llama4.attention.sliding_window", 0),
              HasSubstr("sliding_window: want 8192 or none, got 0"));
  EXPECT_EQ(refusal("llama4.attention.sliding_window", 8192), "");
  EXPECT_THAT(refusal("llama4.attention.sliding_window_pattern", 3), HasSubstr("want 4, got 3"));
  EXPECT_THAT(refusal("llama4.interleave_moe_layer_step", 0), HasSubstr("at least 1, got 0"));
  EXPECT_THAT(refusal("llama4.attention.sliding_window_pattern", 4, 0),
              HasSubstr("expert_count: want at least 1"));
  const auto stretched = ReadGguf([](testing::GgufWriter& writer) {
    writer.U32("llama4.interleave_moe_layer_step", 1);
    writer.String("llama4.rope.scaling.type", "yarn").F32("llama4.rope.scaling.factor", 4.0F);
  });
  EXPECT_THAT(std::string(stretched.status().message()), HasSubstr("rope.scaling.type: want"));
}

}  // namespace
}  // namespace quire::engine
