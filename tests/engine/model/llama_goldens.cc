#include "tests/engine/model/llama_goldens.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

#include "base/json.h"
#include "tests/testing/test_data.h"

namespace quire::engine {

namespace {

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

}  // namespace

std::vector<GoldenCase> ReadGoldens() {
  const std::string path = testing::TestSourcePath("engine/model/testdata/llama_goldens.json");
  const nlohmann::json file = *base::ParseJson(testing::ReadFile(path), path);
  std::vector<GoldenCase> cases;
  for (const nlohmann::json& entry : file.at("cases")) {
    const nlohmann::json& config = entry.at("config");
    GoldenCase golden{.name = entry.at("name"), .ids = entry.at("ids"), .bound = entry.at("bound")};
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
    std::string bytes;
    EXPECT_TRUE(absl::Base64Unescape(entry.at("logits").get<std::string>(), &bytes));
    golden.logits.resize(bytes.size() / sizeof(float));
    std::memcpy(golden.logits.data(), bytes.data(), bytes.size());
    cases.push_back(std::move(golden));
  }
  return cases;
}

}  // namespace quire::engine
