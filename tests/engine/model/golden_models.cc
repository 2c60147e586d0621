#include "tests/engine/model/golden_models.h"

#include <utility>

#include "base/json.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/decoder.h"
#include "engine/model/model_config_reader.h"
#include "tests/testing/test_data.h"

namespace quire::testing {
namespace {

using nlohmann::json;

json ReadCases(const char* name) {
  const std::string path = TestSourcePath(std::string("engine/model/testdata/") + name);
  json file = *base::ParseJson(ReadFile(path), path);
  return std::move(file.at("cases"));
}

GoldenModel ReadGolden(const json& entry, InMemoryWeights weights) {
  const std::string name = entry.at("name");
  absl::StatusOr<engine::ModelConfig> config =
      engine::ReadHfModelConfig(entry.at("config"), name, weights);
  EXPECT_TRUE(config.ok()) << config.status();
  return {ReadGoldenLogits(entry), name, *config,
          std::make_shared<const InMemoryWeights>(std::move(weights)),
          engine::FindArchitecture(config->architecture)->hf_names(config->layers[0])};
}

TinyLlamaShape ShapeOf(const json& config) {
  return {.vocab_size = config.at("vocab_size"),
          .hidden_size = config.at("hidden_size"),
          .intermediate_size = config.at("intermediate_size"),
          .num_hidden_layers = config.at("num_hidden_layers"),
          .num_attention_heads = config.at("num_attention_heads"),
          .num_key_value_heads = config.at("num_key_value_heads"),
          .head_dim = config.at("head_dim"),
          .tie_word_embeddings = config.at("tie_word_embeddings"),
          .attention_bias = config.at("attention_bias"),
          .mlp_bias = config.at("mlp_bias")};
}

}  // namespace

std::vector<GoldenModel> ReadGoldenLlamas(bool gguf_naming) {
  std::vector<GoldenModel> goldens;
  for (const json& entry : ReadCases("llama_goldens.json")) {
    GoldenModel golden = ReadGolden(entry, MakeTinyLlama(ShapeOf(entry.at("config")), gguf_naming));
    if (gguf_naming) {
      golden.name += "_gguf";
      golden.names = engine::kLlama.gguf_names(golden.config.layers[0]);
      golden.config.ropes[0].layout = kernels::RopeLayout::kInterleaved;
    }
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

std::vector<GoldenModel> ReadGoldenFamilies() {
  std::vector<GoldenModel> goldens;
  for (const json& entry : ReadCases("family_goldens.json")) {
    InMemoryWeights weights;
    for (const auto& [name, shape] : entry.at("tensors").items()) weights.AddRandom(name, shape);
    goldens.push_back(ReadGolden(entry, std::move(weights)));
  }
  return goldens;
}

std::vector<GoldenModel> ReadGoldenModels() {
  std::vector<GoldenModel> goldens;
  size_t i = 0;
  for (std::vector<GoldenModel> some :
       {ReadGoldenLlamas(), ReadGoldenLlamas(true), ReadGoldenFamilies()}) {
    for (GoldenModel& golden : some) {
      if (i++ % QUIRE_GOLDEN_STRIDE == 0) goldens.push_back(std::move(golden));
    }
  }
  return goldens;
}

GoldenRunner::GoldenRunner(const GoldenModel& golden, std::unique_ptr<kernels::Backend> backend,
                           kernels::Communicator* communicator)
    : backend_(std::move(backend)),
      runner_(*engine::CreateDecoder(golden.config, *golden.weights, golden.names, *backend_,
                                     ModelRunner::kLimits, communicator),
              *backend_) {}

}  // namespace quire::testing
