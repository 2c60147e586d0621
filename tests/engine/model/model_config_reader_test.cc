// Tests the ModelConfig that is read from a Llama's config.json, and the same model read from every
// format.

#include "engine/model/model_config_reader.h"

#include <memory>
#include <ostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/engine/model/layer_windows.h"
#include "tests/testing/in_memory_weights.h"
#include "tests/testing/test_data.h"

namespace quire::engine {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<ModelConfig> ReadHf(const json& config) {
  return ReadHfModelConfig(config, "config.json", testing::InMemoryWeights());
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
  EXPECT_EQ(config->layers[0].attention.num_kv_heads, 2);
  EXPECT_EQ(config->layers[0].attention.key_dim, 16);
  EXPECT_EQ(config->norm_eps, 1e-5);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_EQ(config->ropes[0].layout, kernels::RopeLayout::kHalfSplit);
  EXPECT_EQ(config->ropes[0].rope_dim, 16);
  EXPECT_EQ(config->ropes[0].theta, 10000.0);
  EXPECT_EQ(config->ropes[0].scaling, RopeScaling::kNone);
}

TEST(HfModelConfigTest, ReadsOptionalKeys) {
  const auto config =
      ReadHf(Llama(json::parse(R"({"head_dim": 32, "rope_theta": 500000, "rope_scaling": null,
      "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true, "num_key_value_heads": null,
      "pretraining_tp": 2, "partial_rotary_factor": 1.0, "_name_or_path": "me/mine"})")));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers[0].attention.key_dim, 32);
  EXPECT_EQ(config->ropes[0].theta, 500000.0);
  EXPECT_TRUE(config->layers[0].attention.bias);
  EXPECT_TRUE(config->layers[0].feed_forward.bias);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->layers[0].attention.num_kv_heads, 4);
  EXPECT_EQ(config->name, "me/mine");
}

TEST(HfModelConfigTest, ReadsScalingInEverySpelling) {
  for (const char* edit :
       {R"({"rope_scaling": {"type": "linear", "factor": 4.0}})",
        R"({"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 4}})",
        R"({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}})"}) {
    const auto config = ReadHf(Llama(json::parse(edit)));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->ropes[0].scaling, RopeScaling::kLinear);
    EXPECT_EQ(config->ropes[0].factor, 4.0);
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto config = ReadHf(Llama({{key, json::parse(R"({"rope_type": "llama3", "factor": 32.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_theta": 500000.0})")}}));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->ropes[0].scaling, RopeScaling::kLlama3);
    EXPECT_EQ(config->ropes[0].factor, 32.0);
    EXPECT_EQ(config->ropes[0].low_freq_factor, 1.0);
    EXPECT_EQ(config->ropes[0].high_freq_factor, 4.0);
    EXPECT_EQ(config->ropes[0].original_max_position_embeddings, 8192);
    EXPECT_EQ(config->ropes[0].theta, 500000.0);
  }
  const auto yarn = ReadHf(Llama(json::parse(R"({"rope_scaling": {"rope_type": "yarn",
      "factor": 4.0, "beta_fast": 16, "truncate": false}})")));
  ASSERT_TRUE(yarn.ok()) << yarn.status();
  EXPECT_EQ(yarn->ropes[0].scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn->ropes[0].original_max_position_embeddings, yarn->max_position_embeddings);
  EXPECT_EQ(yarn->ropes[0].beta_fast, 16.0);
  EXPECT_FALSE(yarn->ropes[0].truncate);
  EXPECT_NEAR(yarn->ropes[0].attention_factor, 1.1386294361119891, 1e-15);  // 0.1 ln 4 + 1
  const auto plain =
      ReadHf(Llama({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 100000.0}}}}));
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->ropes[0].scaling, RopeScaling::kNone);
  EXPECT_EQ(plain->ropes[0].theta, 100000.0);
}

// An output head (lm_head) whose bytes differ from the embedding is used as it is, whatever the
// config says. This is what transformers 5 does.
TEST(HfModelConfigTest, AHeadThatDiffersIsNotTied) {
  const json file = Llama({{"tie_word_embeddings", true}});
  const auto is_tied = [&](std::vector<float> head) {
    testing::InMemoryWeights weights;
    weights.Add("model.embed_tokens.weight", {2, 2}, {1, 2, 3, 4});
    if (!head.empty()) {
      const auto rows = static_cast<int64_t>(head.size() / 2);
      weights.Add("lm_head.weight", {rows, 2}, std::move(head));
    }
    const auto config = ReadHfModelConfig(file, "config.json", weights);
    EXPECT_TRUE(config.ok()) << config.status();
    return config->tie_word_embeddings;
  };
  EXPECT_TRUE(is_tied({}));
  EXPECT_TRUE(is_tied({1, 2, 3, 4}));
  EXPECT_FALSE(is_tied({1, 2, 3, 5}));
  EXPECT_FALSE(is_tied({1, 2}));
}

TEST(ModelConfigTest, OnlySomePositionsGoBeyondTheirContext) {
  EXPECT_TRUE(ServesBeyondItsContext({.alibi_bias_max = 8.0}));
  EXPECT_TRUE(ServesBeyondItsContext({.ropes = {{.scaling = RopeScaling::kYarn}}}));
  EXPECT_FALSE(ServesBeyondItsContext({.ropes = {{.rope_dim = 8}}}));
  EXPECT_FALSE(ServesBeyondItsContext({.learned_positions = true}));
}

TEST(HfModelConfigTest, MistralHasAWindowUnlessNull) {
  json mistral =
      Llama({{"architectures", {"MistralForCausalLM"}}, {"max_position_embeddings", 32768}});
  EXPECT_THAT(LayerWindows(*ReadHf(mistral)), ElementsAre(4096, 4096));
  mistral["sliding_window"] = nullptr;
  EXPECT_THAT(LayerWindows(*ReadHf(mistral)), ::testing::Each(0));
  mistral["sliding_window"] = 1024;
  EXPECT_THAT(LayerWindows(*ReadHf(mistral)), ElementsAre(1024, 1024));
  mistral["sliding_window"] = 32768;
  EXPECT_THAT(LayerWindows(*ReadHf(mistral)), ::testing::Each(0));
}

struct HfRefusal {
  std::string name;
  std::string edit;
  std::string field;
  std::string problem;

  friend void PrintTo(const HfRefusal& refusal, std::ostream* out) { *out << refusal.name; }
};

const HfRefusal kHfRefusals[] = {
    {"LongRopeOfALlama",
     R"({"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [2]}})",
     "rope_scaling: rope_type", "longrope: not supported"},
    {"NoArchitecture", R"({"architectures": null})", "architectures",
     "Llama4ForConditionalGeneration, MiMoV2FlashForCausalLM, MixtralForCausalLM"},
    {"OtherArchitecture", R"({"architectures": ["OPTForCausalLM"]})", "architectures",
     "OPTForCausalLM"},
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
     "high_freq_factor", "want at least"},
    {"ScalingIsText", R"({"rope_scaling": "linear"})", "rope_scaling", "want an object or null"},
    {"ScalingByLayer", R"({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}})",
     "rope_parameters: full_attention", "all layers"},
    {"FlagIsANumber", R"({"attention_bias": 1})", "attention_bias", "true or false"},
    {"SlidingWindow", R"({"sliding_window": 64})", "sliding_window", "got 64"},
    {"ThetaNegative", R"({"rope_theta": -1})", "rope theta", "got -1"},
    {"YarnWithoutWaves", R"({"rope_theta": 1, "rope_scaling": {"rope_type": "yarn", "factor": 4}})",
     "rope theta", "more than 1 with YaRN"},
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

// The settings that publishers write: llm-compressor, AutoFP8 and Qwen, DeepSeek, ModelOpt.
constexpr const char* kQuantizations[] = {
    R"({"quant_method": "compressed-tensors", "format": "float-quantized",
        "quantization_status": "compressed", "global_compression_ratio": 1.46,
        "ignore": ["lm_head", "re:.*gate$"], "kv_cache_scheme": null, "version": "0.9",
        "sparsity_config": {"format": "dense", "global_sparsity": 0.1, "ignore": []},
        "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": null,
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token"},
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true,
                        "dynamic": false, "group_size": null, "block_structure": null,
                        "actorder": null, "observer": "minmax", "observer_kwargs": {}}}}})",
    R"({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"],
        "kv_cache_scheme": "static"})",
    R"({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
        "weight_block_size": [128, 128], "scale_fmt": "ue8m0",
        "modules_to_not_convert": ["lm_head"]})",
    R"({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.33"}, "kv_cache_quant_algo": "FP8",
        "config_groups": {"group_0": {"targets": ["Linear"],
            "weights": {"dynamic": false, "num_bits": 8, "type": "float"},
            "input_activations": {"dynamic": false, "num_bits": 8, "type": "float"}}}})"};

TEST(HfQuantizationTest, AcceptsWhatPublishersWrite) {
  EXPECT_TRUE(ReadHf(Llama({{"quantization_config", nullptr}})).ok());
  for (const char* quantization : kQuantizations) {
    const auto config = ReadHf(Llama({{"quantization_config", json::parse(quantization)}}));
    EXPECT_TRUE(config.ok()) << config.status();
  }
}

struct QuantizationRefusal {
  size_t accepted;  // the index in kQuantizations
  const char *edit, *error;
};
constexpr const char* kWeights = "quantization_config: config_groups: group_0: weights: ";

TEST(HfQuantizationTest, NamesWhatWouldChangeWeights) {
  const auto of_weights = [](const char* edit) {
    return std::string(R"({"config_groups": {"group_0": {"weights": )") + edit + "}}}";
  };
  const auto error = [&](size_t accepted, const std::string& edit) {
    json quantization = json::parse(kQuantizations[accepted]);
    quantization.merge_patch(json::parse(edit));
    return std::string(ReadHf(Llama({{"quantization_config", quantization}})).status().message());
  };
  for (const QuantizationRefusal& r :
       {QuantizationRefusal{0, R"({"format": "pack-quantized"})", "format: want one of"},
        {0, R"({"quantization_status": "initialized"})", "quantization_status: want one of"},
        {0, R"({"sparsity_config": {"format": "sparse-24-bitmask"}})",
         "sparsity_config: format: want"},
        {0, R"({"transform_config": {"config_groups": {}}})", "transform_config: want one of"},
        {0, R"({"rotation": "hadamard"})", "rotation: want no such key"},
        {0, R"({"config_groups": {"group_0": {"output_activations": {"num_bits": 8}}}})",
         "output_activations: want one of [null], got"},
        {0, R"({"config_groups": {"group_1": {}}})", "group_1: weights: want an object"},
        {0, R"({"config_groups": {"group_1": 3}})", "group_1: want an object"},
        {1, R"({"fmt": "e5m2"})", "quantization_config: fmt: want one of"},
        {1, R"({"weight_block_size": [64, 128]})", "weight_block_size: want one of"},
        {1, R"({"weight_block_size": 128})", "weight_block_size: want one of"},
        {2, R"({"scale_fmt": "inverse"})", "scale_fmt: want one of"},
        {2, R"({"quant_method": "fbgemm_fp8"})", "quantization_config: want weights in F32"},
        {2, R"({"quant_method": null})", "got a quantisation"},
        {3, R"({"quant_algo": "NVFP4"})", "quant_algo: want one of"},
        {3, R"({"quant_algo": null})", "quant_algo: want one of"}}) {
    EXPECT_THAT(error(r.accepted, r.edit), HasSubstr(r.error)) << r.edit;
  }
  for (const auto& [edit, problem] : {std::pair(R"({"num_bits": 4})", "num_bits: want one of [8]"),
                                      {R"({"type": "int"})", "type: want one of"},
                                      {R"({"strategy": "group"})", "strategy: want one of"},
                                      {R"({"symmetric": false})", "symmetric: want one of"},
                                      {R"({"dynamic": true})", "dynamic: want one of"},
                                      {R"({"group_size": 32})", "group_size: want one of"},
                                      {R"({"block_structure": [64, 64]})", "block_structure: want"},
                                      {R"({"actorder": "group"})", "actorder: want one of"}}) {
    EXPECT_THAT(error(0, of_weights(edit)), HasSubstr(std::string(kWeights) + problem));
  }
  EXPECT_THAT(std::string(ReadHf(Llama({{"quantization_config", "fp8"}})).status().message()),
              HasSubstr("quantization_config: want an object or null"));
}

TEST(ModelConfigReaderTest, BareWeightsSayWhatIsMissing) {
  files::OpenedModel model{.path = "m.safetensors",
                           .weights = std::make_unique<testing::InMemoryWeights>()};
  EXPECT_THAT(std::string(ReadModelConfig(model).status().message()),
              HasSubstr("want the Hugging Face directory"));
}

class Stories260KConfigTest : public ::testing::TestWithParam<std::string> {};

TEST_P(Stories260KConfigTest, ReadsAlikeFromEveryFormat) {
  const auto model = files::OpenModelFiles(*testing::TestDataPath("models/" + GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto config = ReadModelConfig(*model);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 512);
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->layers[0].feed_forward.inner_size, 172);
  EXPECT_EQ(config->num_layers(), 5);
  EXPECT_EQ(config->layers[0].attention.num_heads, 8);
  EXPECT_EQ(config->layers[0].attention.num_kv_heads, 4);
  EXPECT_EQ(config->layers[0].attention.key_dim, 8);
  EXPECT_EQ(config->max_position_embeddings, 512);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->ropes[0].rope_dim, 8);
  EXPECT_EQ(config->ropes[0].layout,
            model->gguf ? kernels::RopeLayout::kInterleaved : kernels::RopeLayout::kHalfSplit);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Stories260KConfigTest);
INSTANTIATE_TEST_SUITE_P(Formats, Stories260KConfigTest,
                         ::testing::ValuesIn(testing::IfTestData<std::string>(
                             {"models/stories260K-gguf", "models/stories260K-hf"},
                             {"stories260K-gguf/stories260K.f32.gguf",
                              "stories260K-gguf/stories260K.q8_0.gguf",
                              "stories260K-gguf/stories260K.q4_0.gguf", "stories260K-hf"})),
                         [](const auto& test) { return "Format" + std::to_string(test.index); });

}  // namespace
}  // namespace quire::engine
