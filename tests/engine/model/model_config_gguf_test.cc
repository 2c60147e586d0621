// Tests of the ModelConfig that is read from GGUF metadata.

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/model/model_config_reader.h"
#include "files/gguf.h"
#include "tests/engine/model/layer_windows.h"
#include "tests/files/aligned_bytes.h"
#include "tests/files/gguf_writer.h"
#include "tests/testing/temp_directory.h"

namespace quire::engine {
namespace {

using ::quire::testing::GgufWriter;
using ::quire::testing::TempDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<ModelConfig> ReadGguf(const GgufWriter& writer) {
  const TempDirectory directory;
  const auto model = files::OpenModelFiles(directory.Write("m.gguf", writer.Build()));
  if (!model.ok()) return model.status();
  return ReadModelConfig(*model);
}

// Returns the metadata of a Llama without tensors. Leaves out the key `leave_out`. Finally, applies
// `edit`.
GgufWriter Metadata(const std::function<void(GgufWriter&)>& edit = {},
                    const std::string& leave_out = "") {
  GgufWriter writer;
  const auto u32 = [&](const char* key, uint32_t value) {
    if (key != leave_out) writer.U32(key, value);
  };
  if (leave_out != "general.architecture") writer.String("general.architecture", "llama");
  u32("llama.block_count", 2);
  u32("llama.embedding_length", 64);
  u32("llama.feed_forward_length", 96);
  u32("llama.attention.head_count", 4);
  u32("llama.attention.head_count_kv", 2);
  u32("llama.context_length", 128);
  u32("llama.vocab_size", 100);
  if (leave_out != "llama.attention.layer_norm_rms_epsilon") {
    writer.F32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  }
  if (edit) edit(writer);
  return writer;
}

TEST(GgufModelConfigTest, ReadsALlama) {
  const auto config = ReadGguf(testing::TinyLlamaGguf());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->name, "tiny");
  EXPECT_EQ(config->vocab_size, 5);
  EXPECT_EQ(config->hidden_size, 16);
  EXPECT_EQ(config->layers[0].feed_forward.inner_size, 24);
  EXPECT_EQ(config->num_layers(), 2);
  EXPECT_EQ(config->layers[0].attention.num_heads, 2);
  EXPECT_EQ(config->layers[0].attention.num_kv_heads, 1);
  EXPECT_EQ(config->layers[0].attention.key_dim, 8);
  EXPECT_EQ(config->max_position_embeddings, 64);
  EXPECT_FLOAT_EQ(static_cast<float>(config->norm_eps), 1e-5F);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_FALSE(config->layers[0].attention.bias);
  EXPECT_FALSE(config->layers[0].feed_forward.bias);
  EXPECT_EQ(config->ropes[0].layout, kernels::RopeLayout::kInterleaved);
  EXPECT_EQ(config->ropes[0].theta, 10000.0);
  EXPECT_EQ(config->ropes[0].rope_dim, 8);
  EXPECT_EQ(config->ropes[0].scaling, RopeScaling::kNone);
  EXPECT_EQ(config->weight_type, "F32");
  EXPECT_EQ(KvElementsPerToken(*config), 2 * 2 * 1 * 8);
}

TEST(GgufModelConfigTest, TensorsTellWhatMetadataDoesNot) {
  GgufWriter writer = testing::TinyLlamaGguf();
  std::string divisors;
  for (const float divisor : {1.0F, 2.0F, 4.0F, 8.0F}) divisors += testing::Raw(divisor);
  writer.Zeros("output.weight", {5, 16})
      .Zeros("blk.0.attn_q.bias", {16})
      .Zeros("blk.0.ffn_gate.bias", {24});
  writer.Tensor({.name = "rope_freqs.weight", .dims = {4}, .data = divisors});
  const auto config = ReadGguf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_TRUE(config->layers[0].attention.bias);
  EXPECT_TRUE(config->layers[0].feed_forward.bias);
  EXPECT_THAT(config->ropes[0].frequency_divisors, ElementsAre(1, 2, 4, 8));
}

TEST(GgufModelConfigTest, ReadsOptionalKeys) {
  const auto config = ReadGguf(Metadata([](GgufWriter& writer) {
    writer.U32("llama.attention.key_length", 32).U32("llama.attention.value_length", 40);
    writer.U32("llama.rope.dimension_count", 16).F32("llama.rope.freq_base", 500000.0F);
    writer.String("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4.0F);
    writer.U32("llama.expert_count", 0).U32("llama.attention.sliding_window", 128);
  }));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers[0].attention.key_dim, 32);
  EXPECT_EQ(config->layers[0].attention.value_dim, 40);
  EXPECT_EQ(config->ropes[0].rope_dim, 16);
  EXPECT_EQ(config->ropes[0].theta, 500000.0);
  EXPECT_EQ(config->ropes[0].scaling, RopeScaling::kLinear);
  EXPECT_EQ(config->ropes[0].factor, 4.0);
}

TEST(GgufModelConfigTest, ReadsAMixtureOfExperts) {
  for (const bool merged : {true, false}) {
    const auto config = ReadGguf(Metadata([&](GgufWriter& writer) {
      writer.U32("llama.expert_count", 4).U32("llama.expert_used_count", 2);
      writer.Zeros("blk.0.ffn_gate_inp.weight", {64, 4});
      if (merged) writer.Zeros("blk.0.ffn_gate_exps.weight", {64, 96, 4});
      if (!merged) writer.Zeros("blk.0.ffn_gate.3.weight", {64, 96});
    }));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->layers[0].feed_forward.experts.count, 4);
    EXPECT_EQ(config->layers[0].feed_forward.experts.per_token, 2);
    EXPECT_EQ(config->layers[0].feed_forward.experts.weights,
              kernels::ExpertWeights::kSoftmaxOfChosen);
  }
  const auto bad = ReadGguf(Metadata([](GgufWriter& writer) {
    writer.Zeros("blk.0.ffn_gate.x.weight", {64, 96});
  }));
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("ffn_gate.x.weight"));
}

TEST(GgufModelConfigTest, HeadCountsMayBeArraysOfOneNumberForEachLayer) {
  const auto with_heads = [](const std::vector<int32_t>& heads) {
    return ReadGguf(Metadata(
        [&](GgufWriter& writer) {
          writer.Array<int32_t>("llama.attention.head_count_kv", files::GgufType::kInt32, heads);
        },
        "llama.attention.head_count_kv"));
  };
  EXPECT_EQ(with_heads({1, 1}).value().layers[0].attention.num_kv_heads, 1);
  const auto differ = with_heads({1, 2});
  ASSERT_TRUE(differ.ok()) << differ.status();
  EXPECT_EQ(differ->layers[0].attention.num_kv_heads, 1);
  EXPECT_EQ(differ->layers[1].attention.num_kv_heads, 2);
  EXPECT_EQ(KvElementsPerToken(*differ), 2 * 16 * (1 + 2));
  for (const std::vector<int32_t>& other : {std::vector<int32_t>(), {2}, {1, 2, 2}}) {
    EXPECT_THAT(std::string(with_heads(other).status().message()),
                HasSubstr(absl::StrCat("llama.attention.head_count_kv: want a number for each of 2 "
                                       "layers, got ",
                                       other.size())));
  }
  EXPECT_THAT(std::string(with_heads({2, 3}).status().message()),
              HasSubstr("num_key_value_heads: want a divisor of num_attention_heads 4, got 3"));
  // The file invents layers. Nothing is allocated for them.
  const auto invented = ReadGguf(Metadata(
      [](GgufWriter& writer) {
        writer.U32("llama.block_count", 4000000000);
        writer.Array<int32_t>("llama.attention.head_count_kv", files::GgufType::kInt32, {1, 2});
      },
      "llama.attention.head_count_kv"));
  EXPECT_FALSE(invented.ok());
  EXPECT_EQ(ReadGguf(Metadata({}, "llama.attention.head_count_kv"))
                .value()
                .layers[0]
                .attention.num_kv_heads,
            4);
}

TEST(GgufModelConfigTest, EachLayerHasTheScalesOfItsFp8Cache) {
  using kernels::CacheScales;
  const auto with_scales = [](const std::vector<float>& k, const std::vector<float>& v) {
    return ReadGguf(Metadata([&](GgufWriter& writer) {
      writer.Array<float>("llama.attention.k_cache_scales", files::GgufType::kFloat32, k);
      writer.Array<float>("llama.attention.v_cache_scales", files::GgufType::kFloat32, v);
    }));
  };
  const auto config = with_scales({0.3f, CacheScales::kSmallest}, {7.0f, CacheScales::kLargest});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers[0].attention.cache_scales, (CacheScales{.k = 0.3f, .v = 7.0f}));
  EXPECT_EQ(config->layers[1].attention.cache_scales,
            (CacheScales{.k = CacheScales::kSmallest, .v = CacheScales::kLargest}));
  EXPECT_EQ(ReadGguf(Metadata())->layers[1].attention.cache_scales, CacheScales());
  for (const std::vector<float>& other : {std::vector<float>(), {1.0f}, {1.0f, 1.0f, 1.0f}}) {
    EXPECT_THAT(std::string(with_scales(other, {1.0f, 1.0f}).status().message()),
                HasSubstr(absl::StrCat("m.gguf: llama.attention.k_cache_scales: want a number for "
                                       "each of 2 layers, got ",
                                       other.size())));
  }
  using Limits = std::numeric_limits<float>;
  for (const float bad : {0.0f, -1.0f, 2 * CacheScales::kLargest, CacheScales::kSmallest / 2,
                          Limits::infinity(), Limits::quiet_NaN()}) {
    EXPECT_THAT(std::string(with_scales({1.0f, bad}, {1.0f, 1.0f}).status().message()),
                HasSubstr("m.gguf: scales of an fp8 cache: want "))
        << bad;
    EXPECT_FALSE(with_scales({1.0f, 1.0f}, {bad, 1.0f}).ok()) << bad;
  }
}

TEST(GgufModelConfigTest, ScalingOfTypeNoneIsNone) {
  const auto config = ReadGguf(Metadata([](GgufWriter& writer) {
    writer.String("llama.rope.scaling.type", "none").F32("llama.rope.scaling.factor", 4.0F);
  }));
  EXPECT_EQ(config.value().ropes[0].scaling, RopeScaling::kNone);
  // A scaling factor without a type is linear.
  const auto untyped =
      ReadGguf(Metadata([](GgufWriter& writer) { writer.F32("llama.rope.scale_linear", 2.0F); }));
  EXPECT_EQ(untyped.value().ropes[0].scaling, RopeScaling::kLinear);
  EXPECT_EQ(untyped.value().ropes[0].factor, 2.0);
}

TEST(GgufModelConfigTest, YarnIsWhatLlamaCppMakesOfIt) {
  const auto read = [](const std::function<void(GgufWriter&)>& more) {
    return ReadGguf(Metadata([&](GgufWriter& writer) {
      writer.String("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 4.0F);
      more(writer);
    }));
  };
  const absl::StatusOr<ModelConfig> usual = read([](GgufWriter&) {});
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_EQ(usual->ropes[0].scaling, RopeScaling::kYarn);
  EXPECT_EQ(usual->ropes[0].factor, 4.0);
  EXPECT_EQ(usual->ropes[0].original_max_position_embeddings, usual->max_position_embeddings);
  EXPECT_EQ(usual->ropes[0].beta_fast, 32.0);
  EXPECT_EQ(usual->ropes[0].beta_slow, 1.0);
  EXPECT_TRUE(usual->ropes[0].truncate);
  EXPECT_DOUBLE_EQ(usual->ropes[0].attention_factor, 0.1 * std::log(4.0) + 1.0);

  const absl::StatusOr<ModelConfig> told = read([](GgufWriter& writer) {
    writer.U32("llama.rope.scaling.original_context_length", 32)
        .F32("llama.rope.scaling.yarn_beta_fast", 16.0F)
        .F32("llama.rope.scaling.yarn_beta_slow", 2.0F)
        .F32("llama.rope.scaling.attn_factor", 0.5F)
        .F32("llama.rope.scaling.yarn_attn_factor", 0.25F)
        .F32("llama.rope.scaling.yarn_ext_factor", 1.0F);
  });
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->ropes[0].original_max_position_embeddings, 32);
  EXPECT_EQ(told->ropes[0].beta_fast, 16.0);
  EXPECT_EQ(told->ropes[0].beta_slow, 2.0);
  EXPECT_DOUBLE_EQ(told->ropes[0].attention_factor, 0.125 * usual->ropes[0].attention_factor);

  const absl::StatusOr<ModelConfig> other =
      read([](GgufWriter& writer) { writer.F32("llama.rope.scaling.yarn_ext_factor", 0.0F); });
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("yarn_ext_factor: want 1, got 0"));
}

// Returns the metadata of a small model of `architecture`, without tensors.
GgufWriter MetadataOf(const std::string& architecture, uint32_t num_layers) {
  GgufWriter writer;
  writer.String("general.architecture", architecture);
  const auto key = [&](const char* name) { return architecture + "." + name; };
  writer.U32(key("block_count"), num_layers).U32(key("embedding_length"), 64);
  writer.U32(key("feed_forward_length"), 96).U32(key("attention.head_count"), 4);
  writer.U32(key("context_length"), 128).U32(key("vocab_size"), 100);
  writer.F32(key("attention.layer_norm_rms_epsilon"), 1e-5F);
  return writer;
}

// A key of a feature that Llamas lack, the value that means so, and whether the key is a float.
struct NeutralKey {
  const char* name;
  int neutral;
  bool is_float = false;
};
constexpr NeutralKey kNeutralKeys[] = {{"expert_shared_count", 0},
                                       {"expert_group_count", 0},
                                       {"expert_group_used_count", 0},
                                       {"expert_weights_scale", 1, true},
                                       {"nextn_predict_layers", 0},
                                       {"leading_dense_block_count", 0},
                                       {"logit_scale", 1, true},
                                       {"residual_scale", 1, true},
                                       {"embedding_scale", 1, true},
                                       {"attention.max_alibi_bias", 0, true},
                                       {"attention.clamp_kqv", 0, true},
                                       {"attention.sliding_window", 0},
                                       {"attn_logit_softcapping", 0, true},
                                       {"final_logit_softcapping", 0, true},
                                       {"pooling_type", 0},
                                       {"router_logit_softcapping", 0, true},
                                       {"rope.scaling.yarn_ext_factor", 0, true},
                                       {"rope.scaling.yarn_log_multiplier", 0, true}};

void AddKey(GgufWriter& writer, const NeutralKey& key, int more) {
  const std::string name = std::string("llama.") + key.name;
  if (key.is_float) {
    writer.F32(name, static_cast<float>(key.neutral) + 0.5F * static_cast<float>(more));
  } else {
    writer.U32(name, static_cast<uint32_t>(key.neutral + more));
  }
}

TEST(GgufModelConfigTest, KeysAtTheirNeutralValueAreNoRefusal) {
  GgufWriter writer = testing::TinyLlamaGguf();
  for (const NeutralKey& key : kNeutralKeys) AddKey(writer, key, 0);
  writer.Bool("llama.attention.causal", true).Bool("llama.use_parallel_residual", false);
  writer.F32("llama.rope.scaling.yarn_beta_fast", 32.0F);
  writer.F32("llama.rope.scaling.yarn_beta_slow", 1.0F);
  const auto config = ReadGguf(writer);
  EXPECT_TRUE(config.ok()) << config.status();
}

TEST(GgufModelConfigTest, KeysAtAnotherValueAreRefusedByName) {
  const auto error_with = [](const std::function<void(GgufWriter&)>& add) {
    GgufWriter writer = testing::TinyLlamaGguf();
    add(writer);
    return std::string(ReadGguf(writer).status().message());
  };
  for (const NeutralKey& key : kNeutralKeys) {
    EXPECT_THAT(error_with([&](GgufWriter& writer) { AddKey(writer, key, 1); }),
                AllOf(HasSubstr(std::string("llama.") + key.name), HasSubstr("not supported")))
        << key.name;
  }
  EXPECT_THAT(error_with([](auto& writer) { writer.Bool("llama.attention.causal", false); }),
              HasSubstr("attention.causal: want 1, got 0: non-causal attention"));
  EXPECT_THAT(error_with([](auto& writer) { writer.Bool("llama.use_parallel_residual", true); }),
              HasSubstr("use_parallel_residual: want 0, got 1: parallel residual"));
  for (const std::string key : {"qwen2.expert_count", "qwen2.expert_used_count"}) {
    EXPECT_TRUE(ReadGguf(MetadataOf("qwen2", 2).U32(key, 0)).ok()) << key;
    EXPECT_THAT(std::string(ReadGguf(MetadataOf("qwen2", 2).U32(key, 2)).status().message()),
                HasSubstr(key + ": want 0, got 2: mixture of experts is not supported"));
  }
}

TEST(GgufModelConfigTest, LayersTellBaichuansApart) {
  const auto small = ReadGguf(MetadataOf("baichuan", 32));
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_FALSE(small->alibi_bias_max.has_value());
  EXPECT_EQ(small->ropes[0].layout, kernels::RopeLayout::kInterleaved);
  EXPECT_EQ(ReadGguf(MetadataOf("baichuan", 40)).value().alibi_bias_max, 8.0);
  EXPECT_THAT(std::string(ReadGguf(MetadataOf("baichuan", 2)).status().message()),
              HasSubstr("baichuan.block_count: want 32"));
}

TEST(GgufModelConfigTest, OfSixLayersOfAGemmaFiveSlide) {
  GgufWriter writer = MetadataOf("gemma3", 7);
  writer.U32("gemma3.attention.sliding_window", 16).F32("gemma3.rope.freq_base", 1e6F);
  const auto config = ReadGguf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(LayerWindows(*config), ElementsAre(16, 16, 16, 16, 16, 0, 16));
  EXPECT_EQ(config->ropes[0].theta, 1e6);
  EXPECT_EQ(config->ropes.at(1).theta, 1e4);
  EXPECT_EQ(config->norm_weight_offset, 0.0) << "llama.cpp's converter has added it";
}

TEST(GgufModelConfigTest, Phi3SlidesWhereLlamaIsRefused) {
  GgufWriter writer = MetadataOf("phi3", 2);
  writer.U32("phi3.attention.sliding_window", 64);
  EXPECT_THAT(LayerWindows(ReadGguf(writer).value()), ElementsAre(64, 64));
}

struct Refusal {
  std::string name;
  std::string leave_out;  // a key that the metadata lacks
  std::function<void(GgufWriter&)> edit;
  std::string field;
  std::string problem;

  friend void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }
};

// Returns a case in which the number at `key` is replaced by `value`, so that the metadata is
// refused.
Refusal Number(const std::string& name, const std::string& key, uint32_t value,
               const std::string& field, const std::string& problem) {
  return {name, key, [=](GgufWriter& writer) { writer.U32(key, value); }, field, problem};
}
Refusal Text(const std::string& name, const std::string& key, const std::string& value,
             const std::string& problem) {
  return {name, key, [=](GgufWriter& writer) { writer.String(key, value); }, key, problem};
}
Refusal Float(const std::string& name, const std::string& key, float value,
              const std::string& field, const std::string& problem) {
  return {name, key, [=](GgufWriter& writer) { writer.F32(key, value); }, field, problem};
}
Refusal Absent(const std::string& name, const std::string& key) {
  return {name, key, {}, key, "absent"};
}
Refusal Tensor(const std::string& name, const std::string& tensor, const std::string& problem) {
  return {name, "", [=](GgufWriter& writer) { writer.Zeros(tensor, {8}); }, "tensor " + tensor,
          problem};
}

const Refusal kGgufRefusals[] = {
    Absent("NoArchitecture", "general.architecture"),
    Absent("NoLayers", "llama.block_count"),
    Absent("NoHidden", "llama.embedding_length"),
    Absent("NoHeads", "llama.attention.head_count"),
    Absent("NoContext", "llama.context_length"),
    Absent("NoEpsilon", "llama.attention.layer_norm_rms_epsilon"),
    Absent("NoVocabulary", "llama.vocab_size"),
    Text("OtherArchitecture", "general.architecture", "mamba",
         "qwen3, qwen3moe, refact, smollm3; got \"mamba\""),
    Text("TextForNumber", "llama.block_count", "2", "want an integer"),
    Text("LongRope", "llama.rope.scaling.type", "longrope", "got \"longrope\": not supported"),
    Number("ZeroLayers", "llama.block_count", 0, "num_hidden_layers", "got 0"),
    Number("AbsurdLayers", "llama.block_count", 4000000000, "num_hidden_layers", "got 4000000000"),
    Number("ZeroHeads", "llama.attention.head_count", 0, "attention.head_count", "got 0"),
    Number("HeadsThatDoNotDivide", "llama.attention.head_count", 5, "attention.head_count",
           "got 5"),
    Number("KvHeadsThatDoNotDivide", "llama.attention.head_count_kv", 3, "num_key_value_heads",
           "got 3"),
    Number("MoreKvHeads", "llama.attention.head_count_kv", 8, "num_key_value_heads",
           "want 1 to 4, got 8"),
    Number("ZeroKvHeads", "llama.attention.head_count_kv", 0, "num_key_value_heads", "got 0"),
    Number("HeadDimTooLarge", "llama.attention.key_length", 264, "head_dim",
           "want 8 to 256, got 264"),
    Number("HeadDimOdd", "llama.attention.key_length", 20, "head_dim", "multiple of 8, got 20"),
    Number("ValuesTooLong", "llama.attention.value_length", 264, "v_head_dim",
           "want 8 to 256, got 264"),
    Number("ValuesOfAnOddLength", "llama.attention.value_length", 12, "v_head_dim",
           "multiple of 8, got 12"),
    Number("RopeDimOdd", "llama.rope.dimension_count", 5, "rope dimensions", "even number, got 5"),
    Number("RopeDimTooLarge", "llama.rope.dimension_count", 18, "rope dimensions",
           "want 2 to 16, got 18"),
    Number("ZeroContext", "llama.context_length", 0, "max_position_embeddings", "got 0"),
    Number("SlidingWindow", "llama.attention.sliding_window", 64, "sliding_window",
           "sliding windows are not"),
    Number("NoExpertChosen", "llama.expert_count", 8, "num_experts_per_tok", "got 0"),
    Number("SharedExpert", "llama.expert_shared_count", 1, "llama.expert_shared_count",
           "an expert for every token is not supported"),
    Number("UnknownKey", "llama.attention.dance", 1, "llama.attention.dance", "not known here"),
    Float("LogitScale", "llama.logit_scale", 0.5F, "llama.logit_scale", "logit scaling"),
    Float("Alibi", "llama.attention.max_alibi_bias", 8.0F, "max_alibi_bias",
          "ALiBi is not supported"),
    Float("EpsilonNan", "llama.attention.layer_norm_rms_epsilon",
          std::numeric_limits<float>::quiet_NaN(), "norm_eps", "got nan"),
    Float("EpsilonLarge", "llama.attention.layer_norm_rms_epsilon", 1.0F, "norm_eps", "got 1"),
    Float("ThetaInfinite", "llama.rope.freq_base", std::numeric_limits<float>::infinity(),
          "rope theta", "inf"),
    Float("ThetaZero", "llama.rope.freq_base", 0.0F, "rope theta", "got 0"),
    Float("FactorBelowOne", "llama.rope.scaling.factor", 0.5F, "rope scaling factor", "got 0.5"),
    {"NotCausal", "", [](GgufWriter& writer) { writer.Bool("llama.attention.causal", false); },
     "llama.attention.causal", "non-causal"},
    Tensor("UnknownTensor", "blk.0.attn_q_norm.weight", "does not have"),
    Tensor("UnknownTopTensor", "position_embd.weight", "does not have"),
    Tensor("TensorOfNoLayer", "blk.attn_norm.weight", "does not have"),
    {"UnusableType", "",
     [](GgufWriter& writer) {
       writer.Tensor(
           {.name = "output.weight", .type = 10, .dims = {256}, .data = std::string(84, 'x')});
     },
     "tensor output.weight", "got Q2_K"},
    {"RopeFreqsOfZero", "", [](GgufWriter& writer) { writer.Zeros("rope_freqs.weight", {8}); },
     "rope frequency divisors", "got 0"},
    {"RopeFreqsOfWrongLength", "",
     [](GgufWriter& writer) { writer.Zeros("rope_freqs.weight", {7}); }, "tensor rope_freqs.weight",
     "want [8], got [7]"},
    {"EmbeddingOfOtherRows", "",
     [](GgufWriter& writer) {
       writer.Zeros("token_embd.weight", {99, 64});
     },
     "vocab_size", "want the 99 tokens of token_embd.weight, got 100"},
};

class GgufRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(GgufRefusalTest, NamesTheField) {
  ASSERT_TRUE(ReadGguf(Metadata()).ok());
  const auto config = ReadGguf(Metadata(GetParam().edit, GetParam().leave_out));
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(config.status().message()),
      AllOf(HasSubstr("m.gguf"), HasSubstr(GetParam().field), HasSubstr(GetParam().problem)));
}

INSTANTIATE_TEST_SUITE_P(All, GgufRefusalTest, ::testing::ValuesIn(kGgufRefusals),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire::engine
