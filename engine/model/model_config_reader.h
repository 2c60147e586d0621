#pragma once

// Makes a ModelConfig from the description in a model file, whatever the format of the file.

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/model/model_config.h"
#include "files/model_files.h"

namespace quire::engine {

// Reads and validates a config. Returns InvalidArgument when a value is missing or out of range, or
// when the model uses an unsupported feature. Examples are an unknown architecture or rotary
// scaling, a soft cap in an architecture that has none, and a quantisation of config.json other
// than fp8. The error names the file, the field, the wanted value and the value found. Nothing that
// changes the answers of a model is ignored.
absl::StatusOr<ModelConfig> ReadModelConfig(const files::OpenedModel& model);

// Each of the next two functions reads one format. The tensors in `weights` show facts that the
// metadata lacks: the type of most weights, a tied head and, in a GGUF file, biases.
absl::StatusOr<ModelConfig> ReadGgufModelConfig(const files::GgufMetadata& metadata,
                                                const files::WeightMap& weights);
absl::StatusOr<ModelConfig> ReadHfModelConfig(const nlohmann::json& config, std::string_view file,
                                              const files::WeightMap& weights);

// The largest number of layers that is accepted, far more than any existing model has. After a
// reader has checked this limit, it may allocate vectors with an entry for each layer.
inline constexpr int64_t kMaxLayers = 4096;

// Checks ranges and consistency of a config that a reader filled in. The error begins with `file`.
absl::Status Validate(const ModelConfig& config, std::string_view file);

// Returns the type that most elements of the weights have, such as "Q4_1". Returns an empty string
// if there are no tensors.
std::string DominantWeightType(const files::WeightMap& weights);

// Returns the number of elements of K and V that the cache holds for one token in all layers.
int64_t KvElementsPerToken(const ModelConfig& config);

}  // namespace quire::engine
