#pragma once

// From what a model file says about itself to a ModelConfig: one description for every format.

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/model/model_config.h"
#include "engine/weights/model_files.h"

namespace quire::engine {

// Reads and validates. InvalidArgument names the file, the field, what was wanted and what was got,
// when a value is missing or out of range, or when the model uses what we do not honour: another
// architecture, an unknown rotary scaling, experts, soft caps, a quantisation of Hugging Face.
// Nothing that changes a model's answers is ignored.
absl::StatusOr<ModelConfig> ReadModelConfig(const OpenedModel& model);

// Its parts. `weights` tells what metadata does not: a tied head, biases, the vocabulary's rows.
absl::StatusOr<ModelConfig> ReadGgufModelConfig(const GgufMetadata& metadata,
                                                const WeightMap& weights);
absl::StatusOr<ModelConfig> ReadHfModelConfig(const nlohmann::json& config, std::string_view file,
                                              const WeightMap& weights);

// Far beyond any model there is: a reader may make a vector of one for each layer.
inline constexpr int64_t kMaxLayers = 4096;

// Ranges and consistency of what a reader filled in; `file` begins the error.
absl::Status Validate(const ModelConfig& config, std::string_view file);

// The type that most of the weights have: "Q4_1"; empty without tensors.
std::string DominantWeightType(const WeightMap& weights);

// Elements of K and V that one token keeps in the cache, all layers together.
int64_t KvElementsPerToken(const ModelConfig& config);

}  // namespace quire::engine
