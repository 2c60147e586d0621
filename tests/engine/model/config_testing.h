#pragma once

// Reads the config.json of a test, for a model whose file has no tensors.

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "engine/model/model_config_reader.h"
#include "tests/testing/in_memory_weights.h"

namespace quire::engine {

inline absl::StatusOr<ModelConfig> Read(const nlohmann::json& file) {
  return ReadHfModelConfig(file, "config.json", testing::InMemoryWeights());
}

// Returns the error of Read.
inline std::string Refusal(const nlohmann::json& file) {
  return std::string(Read(file).status().message());
}

}  // namespace quire::engine
