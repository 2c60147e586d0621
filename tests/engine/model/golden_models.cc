#include "tests/engine/model/llama_goldens.h"

#include <utility>

#include "base/json.h"
#include "engine/model/llama.h"
#include "tests/testing/test_data.h"

namespace quire::testing {
namespace {

using engine::ModelConfig;
using engine::RopeConfig;
using engine::RopeScaling;

RopeConfig ReadRope(const nlohmann::json& config) {
  RopeConfig rope{.theta = config.at("rope_theta"), .rope_dim = config.at("head_dim")};
  if (config.contains("rope_scaling")) {
    const nlohmann::json& scaling = config.at("rope_scaling");
    rope.factor = scaling.at("factor");
    rope.scaling = RopeScaling::kLinear;
    if (scaling.at("rope_type") == "llama3") {
      rope.scaling = RopeScaling::kLlama3;
      rope.low_freq_factor = scaling.at("low_freq_factor");
      rope.high_freq_factor = scaling.at("high_freq_factor");
      rope.original_max_position_embeddings = scaling.at("original_max_position_embeddings");
    }
  }
  return rope;
}

std::unique_ptr<engine::Model> MakeModel(ModelConfig config, const InMemoryWeights& weights,
                                         bool gguf_naming, kernels::Backend& backend) {
  config.rope.layout =
      gguf_naming ? kernels::RopeLayout::kInterleaved : kernels::RopeLayout::kHalfSplit;
  const auto naming =
      gguf_naming ? engine::TensorNaming::kGguf : engine::TensorNaming::kHuggingFace;
  return *engine::CreateLlama(config, weights, naming, backend, ModelRunner::kLimits);
}

}  // namespace

std::vector<GoldenLlama> ReadGoldenLlamas() {
  const std::string path = TestSourcePath("engine/model/testdata/llama_goldens.json");
  const nlohmann::json file = *base::ParseJson(ReadFile(path), path);
  std::vector<GoldenLlama> cases;
  for (const nlohmann::json& entry : file.at("cases")) {
    const nlohmann::json& config = entry.at("config");
    GoldenLlama golden{ReadGoldenLogits(entry), entry.at("name")};
    golden.config = {.architecture = "llama",
                     .vocab_size = config.at("vocab_size"),
                     .hidden_size = config.at("hidden_size"),
                     .intermediate_size = config.at("intermediate_size"),
                     .num_hidden_layers = config.at("num_hidden_layers"),
                     .num_attention_heads = config.at("num_attention_heads"),
                     .num_key_value_heads = config.at("num_key_value_heads"),
                     .head_dim = config.at("head_dim"),
                     .max_position_embeddings = config.at("max_position_embeddings"),
                     .norm_eps = config.at("rms_norm_eps"),
                     .tie_word_embeddings = config.at("tie_word_embeddings"),
                     .attention_bias = config.at("attention_bias"),
                     .mlp_bias = config.at("mlp_bias"),
                     .rope = ReadRope(config)};
    const ModelConfig& c = golden.config;
    golden.shape = {c.vocab_size,        c.hidden_size,         c.intermediate_size,
                    c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads,
                    c.head_dim,          c.tie_word_embeddings, c.attention_bias,
                    c.mlp_bias};
    cases.push_back(std::move(golden));
  }
  return cases;
}

GoldenLlamaRunner::GoldenLlamaRunner(const GoldenLlama& golden,
                                     std::unique_ptr<kernels::Backend> backend, bool gguf_naming)
    : backend_(std::move(backend)),
      weights_(MakeTinyLlama(golden.shape, gguf_naming)),
      runner_(MakeModel(golden.config, weights_, gguf_naming, *backend_), *backend_) {}

}  // namespace quire::testing
