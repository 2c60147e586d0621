#include "engine/model/model_config_reader.h"

#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/weights/gguf.h"
#include "tests/engine/weights/aligned_bytes.h"
#include "tests/engine/weights/gguf_writer.h"
#include "tests/engine/weights/temp_directory.h"
#include "tests/testing/test_data.h"

namespace quire::engine {
namespace {

using nlohmann::json;
using ::quire::testing::GgufWriter;
using ::quire::testing::TempDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<ModelConfig> ReadGguf(const GgufWriter& writer) {
  const TempDirectory directory;
  const auto model = OpenModelFiles(directory.Write("m.gguf", writer.Build()));
  if (!model.ok()) return model.status();
  return ReadModelConfig(*model);
}

// Metadata of a Llama without any tensor; what is changed in it comes with `edit`.
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
  EXPECT_EQ(config->intermediate_size, 24);
  EXPECT_EQ(config->num_hidden_layers, 2);
  EXPECT_EQ(config->num_attention_heads, 2);
  EXPECT_EQ(config->num_key_value_heads, 1);
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_EQ(config->max_position_embeddings, 64);
  EXPECT_FLOAT_EQ(static_cast<float>(config->norm_eps), 1e-5F);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_FALSE(config->attention_bias);
  EXPECT_FALSE(config->mlp_bias);
  EXPECT_EQ(config->rope.layout, kernels::RopeLayout::kInterleaved);
  EXPECT_EQ(config->rope.theta, 10000.0);
  EXPECT_EQ(config->rope.rope_dim, 8);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kNone);
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
  EXPECT_TRUE(config->attention_bias);
  EXPECT_TRUE(config->mlp_bias);
  EXPECT_THAT(config->rope.frequency_divisors, ElementsAre(1, 2, 4, 8));
}

TEST(GgufModelConfigTest, ReadsOptionalKeys) {
  const auto config = ReadGguf(Metadata([](GgufWriter& writer) {
    writer.U32("llama.attention.key_length", 32).U32("llama.attention.value_length", 32);
    writer.U32("llama.rope.dimension_count", 16).F32("llama.rope.freq_base", 500000.0F);
    writer.String("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4.0F);
    writer.U32("llama.expert_count", 0).U32("llama.attention.sliding_window", 128);
  }));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->rope.rope_dim, 16);
  EXPECT_EQ(config->rope.theta, 500000.0);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(config->rope.factor, 4.0);
}

TEST(GgufModelConfigTest, HeadCountsMayBeArraysOfOneNumber) {
  const auto with_heads = [](const std::vector<int32_t>& heads) {
    return ReadGguf(Metadata(
        [&](GgufWriter& writer) {
          writer.Array<int32_t>("llama.attention.head_count_kv", GgufType::kInt32, heads);
        },
        "llama.attention.head_count_kv"));
  };
  EXPECT_EQ(with_heads({1, 1}).value().num_key_value_heads, 1);
  EXPECT_THAT(std::string(with_heads({1, 2}).status().message()),
              HasSubstr("the same number for every layer"));
  EXPECT_THAT(std::string(with_heads({}).status().message()), HasSubstr("empty array"));
  EXPECT_EQ(ReadGguf(Metadata({}, "llama.attention.head_count_kv")).value().num_key_value_heads, 4);
}

TEST(GgufModelConfigTest, ScalingOfTypeNoneIsNone) {
  const auto config = ReadGguf(Metadata([](GgufWriter& writer) {
    writer.String("llama.rope.scaling.type", "none").F32("llama.rope.scaling.factor", 4.0F);
  }));
  EXPECT_EQ(config.value().rope.scaling, RopeScaling::kNone);
  // Without a type, a factor is linear.
  const auto untyped =
      ReadGguf(Metadata([](GgufWriter& writer) { writer.F32("llama.rope.scale_linear", 2.0F); }));
  EXPECT_EQ(untyped.value().rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(untyped.value().rope.factor, 2.0);
}

struct Refusal {
  std::string name;
  std::string leave_out;  // this key
  std::function<void(GgufWriter&)> edit;
  std::string field;
  std::string problem;

  friend void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }
};

// Replaces one number.
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
    Text("OtherArchitecture", "general.architecture", "mamba", "want one of: llama; got \"mamba\""),
    Text("TextForNumber", "llama.block_count", "2", "want an integer"),
    Text("Yarn", "llama.rope.scaling.type", "yarn", "got \"yarn\": not supported"),
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
    Number("ValuesOfOtherLength", "llama.attention.value_length", 8, "value_length",
           "want the head size"),
    Number("RopeDimOdd", "llama.rope.dimension_count", 5, "rope dimensions", "even number, got 5"),
    Number("RopeDimTooLarge", "llama.rope.dimension_count", 18, "rope dimensions",
           "want 2 to 16, got 18"),
    Number("ZeroContext", "llama.context_length", 0, "max_position_embeddings", "got 0"),
    Number("SlidingWindow", "llama.attention.sliding_window", 64, "sliding_window",
           "sliding windows are not"),
    Number("Experts", "llama.expert_count", 8, "llama.expert_count",
           "mixture of experts is not supported"),
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

// --- config.json

class NoWeights final : public WeightMap {
 public:
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(std::string_view) const override { return nullptr; }
  void DropPages(std::span<const std::byte>) const override {}

 private:
  std::vector<TensorInfo> tensors_;
};

absl::StatusOr<ModelConfig> ReadHf(const json& config) {
  return ReadHfModelConfig(config, "config.json", NoWeights());
}

json Llama(const json& edit = json::object()) {
  json config =
      json::parse(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu"})");
  config.update(edit);
  return config;
}

TEST(HfModelConfigTest, ReadsALlama) {
  const auto config = ReadHf(Llama());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->vocab_size, 100);
  EXPECT_EQ(config->num_key_value_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->norm_eps, 1e-5);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_EQ(config->rope.layout, kernels::RopeLayout::kHalfSplit);
  EXPECT_EQ(config->rope.rope_dim, 16);
  EXPECT_EQ(config->rope.theta, 10000.0);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kNone);
}

TEST(HfModelConfigTest, ReadsOptionalKeys) {
  const auto config =
      ReadHf(Llama(json::parse(R"({"head_dim": 32, "rope_theta": 500000, "rope_scaling": null,
      "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true, "num_key_value_heads": null,
      "pretraining_tp": 2, "partial_rotary_factor": 1.0, "_name_or_path": "me/mine"})")));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->rope.theta, 500000.0);
  EXPECT_TRUE(config->attention_bias);
  EXPECT_TRUE(config->mlp_bias);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->num_key_value_heads, 4);
  EXPECT_EQ(config->name, "me/mine");
}

TEST(HfModelConfigTest, ReadsScalingInEverySpelling) {
  for (const char* edit :
       {R"({"rope_scaling": {"type": "linear", "factor": 4.0}})",
        R"({"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 4}})",
        R"({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}})"}) {
    const auto config = ReadHf(Llama(json::parse(edit)));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope.scaling, RopeScaling::kLinear);
    EXPECT_EQ(config->rope.factor, 4.0);
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto config = ReadHf(Llama({{key, json::parse(R"({"rope_type": "llama3", "factor": 32.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_theta": 500000.0})")}}));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope.scaling, RopeScaling::kLlama3);
    EXPECT_EQ(config->rope.factor, 32.0);
    EXPECT_EQ(config->rope.low_freq_factor, 1.0);
    EXPECT_EQ(config->rope.high_freq_factor, 4.0);
    EXPECT_EQ(config->rope.original_max_position_embeddings, 8192);
    EXPECT_EQ(config->rope.theta, 500000.0);
  }
  const auto yarn = ReadHf(Llama(json::parse(R"({"rope_scaling": {"rope_type": "yarn",
      "factor": 4.0, "beta_fast": 16, "truncate": false}})")));
  ASSERT_TRUE(yarn.ok()) << yarn.status();
  EXPECT_EQ(yarn->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn->rope.original_max_position_embeddings, yarn->max_position_embeddings);
  EXPECT_EQ(yarn->rope.beta_fast, 16.0);
  EXPECT_FALSE(yarn->rope.truncate);
  EXPECT_NEAR(yarn->rope.attention_factor, 1.1386294361119891, 1e-15);  // 0.1 ln 4 + 1
  const auto plain =
      ReadHf(Llama({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 100000.0}}}}));
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(plain->rope.theta, 100000.0);
}

TEST(HfModelConfigTest, MistralHasAWindowUnlessNull) {
  json mistral =
      Llama({{"architectures", {"MistralForCausalLM"}}, {"max_position_embeddings", 32768}});
  EXPECT_EQ(ReadHf(mistral)->sliding_window, 4096);
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(ReadHf(mistral)->sliding_window, 0);
  mistral["sliding_window"] = 1024;
  EXPECT_EQ(ReadHf(mistral)->sliding_window, 1024);
  mistral["sliding_window"] = 32768;
  EXPECT_EQ(ReadHf(mistral)->sliding_window, 0);
}

struct HfRefusal {
  std::string name;
  std::string edit;
  std::string field;
  std::string problem;

  friend void PrintTo(const HfRefusal& refusal, std::ostream* out) { *out << refusal.name; }
};

const HfRefusal kHfRefusals[] = {
    {"NoArchitecture", R"({"architectures": null})", "architectures",
     "LlamaForCausalLM, MistralForCausalLM, MPTForCausalLM"},
    {"OtherArchitecture", R"({"architectures": ["GPT2LMHeadModel"]})", "architectures",
     "GPT2LMHeadModel"},
    {"ArchitectureIsANumber", R"({"architectures": [3]})", "architectures", "got [3]"},
    {"NoHidden", R"({"hidden_size": null})", "hidden_size", "got nothing"},
    {"HiddenIsText", R"({"hidden_size": "64"})", "hidden_size", "want an integer, got \\\"64\\\""},
    {"HiddenIsFractional", R"({"hidden_size": 64.5})", "hidden_size", "got 64.5"},
    {"HiddenBeyondInt64", R"({"hidden_size": 18446744073709551615})", "hidden_size",
     "want an integer"},
    {"NegativeLayers", R"({"num_hidden_layers": -1})", "num_hidden_layers", "got -1"},
    {"ZeroHeads", R"({"num_attention_heads": 0})", "num_attention_heads", "got 0"},
    {"HeadsThatDoNotDivide", R"({"num_attention_heads": 5})", "num_attention_heads",
     "divisor of hidden_size 64"},
    {"KvHeadsThatDoNotDivide", R"({"num_key_value_heads": 3})", "num_key_value_heads", "divisor"},
    {"HeadDim", R"({"head_dim": 12})", "head_dim", "multiple of 8, got 12"},
    {"Gelu", R"({"hidden_act": "gelu"})", "hidden_act", "want silu"},
    {"Quantised", R"({"quantization_config": {"quant_method": "gptq"}})", "quantization_config",
     "got gptq"},
    {"PartialRotary", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor", "got 0.5"},
    {"InterleavedRope", R"({"rope_interleaved": true})", "rope_interleaved", "got true"},
    {"Experts", R"({"num_local_experts": 8})", "num_local_experts", "mixture of experts"},
    {"LogitScale", R"({"logit_scale": 0.1})", "logit_scale", "got 0.1"},
    {"LongRope", R"({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}})", "rope_type",
     "longrope: not supported"},
    {"YarnBeta", R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 0}})",
     "rope beta_fast", "got 0"},
    {"DynamicWithoutFactor", R"({"rope_scaling": {"rope_type": "dynamic"}})", "factor", "a number"},
    {"LinearWithoutFactor", R"({"rope_scaling": {"type": "linear"}})", "rope_scaling: factor",
     "got nothing"},
    {"Llama3WithoutLength",
     R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}})",
     "original_max_position_embeddings", "got nothing"},
    {"Llama3FactorsSwapped",
     R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1, "original_max_position_embeddings": 64}})",
     "high_freq_factor", "want more than"},
    {"ScalingIsText", R"({"rope_scaling": "linear"})", "rope_scaling", "want an object or null"},
    {"ScalingByLayer", R"({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}})",
     "rope_parameters: full_attention", "all layers"},
    {"FlagIsANumber", R"({"attention_bias": 1})", "attention_bias", "true or false"},
    {"SlidingWindow", R"({"sliding_window": 64})", "sliding_window", "got 64"},
    {"ThetaNegative", R"({"rope_theta": -1})", "rope theta", "got -1"},
};

class HfRefusalTest : public ::testing::TestWithParam<HfRefusal> {};

TEST_P(HfRefusalTest, NamesTheField) {
  ASSERT_TRUE(ReadHf(Llama()).ok());
  const auto config = ReadHf(Llama(json::parse(GetParam().edit)));
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(config.status().message()),
              AllOf(HasSubstr("config.json: "), HasSubstr(GetParam().field),
                    HasSubstr(GetParam().problem)));
}

INSTANTIATE_TEST_SUITE_P(All, HfRefusalTest, ::testing::ValuesIn(kHfRefusals),
                         [](const auto& test) { return test.param.name; });

TEST(ModelConfigReaderTest, BareWeightsSayWhatIsMissing) {
  OpenedModel model{.path = "m.safetensors", .weights = std::make_unique<NoWeights>()};
  EXPECT_THAT(std::string(ReadModelConfig(model).status().message()),
              HasSubstr("want the Hugging Face directory"));
}

TEST(ModelConfigReaderTest, TheSameModelReadsAlikeFromEveryFormat) {
  for (const char* path :
       {"stories260K-gguf/stories260K.f32.gguf", "stories260K-gguf/stories260K.q8_0.gguf",
        "stories260K-gguf/stories260K.q4_0.gguf", "stories260K-hf"}) {
    QUIRE_TEST_DATA_OR_SKIP(found, std::string("models/") + path);
    const auto model = OpenModelFiles(found);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto config = ReadModelConfig(*model);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->vocab_size, 512);
    EXPECT_EQ(config->hidden_size, 64);
    EXPECT_EQ(config->intermediate_size, 172);
    EXPECT_EQ(config->num_hidden_layers, 5);
    EXPECT_EQ(config->num_attention_heads, 8);
    EXPECT_EQ(config->num_key_value_heads, 4);
    EXPECT_EQ(config->head_dim, 8);
    EXPECT_EQ(config->max_position_embeddings, 512);
    EXPECT_TRUE(config->tie_word_embeddings);
    EXPECT_EQ(config->rope.rope_dim, 8);
    EXPECT_EQ(config->rope.layout,
              model->gguf ? kernels::RopeLayout::kInterleaved : kernels::RopeLayout::kHalfSplit);
  }
}

}  // namespace
}  // namespace quire::engine
