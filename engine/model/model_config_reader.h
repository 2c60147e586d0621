#pragma once

// Makes a ModelConfig from a model file's own description: one form for every format.

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/model/model_config.h"
#include "files/model_files.h"

namespace quire::engine {

// Reads and validates. InvalidArgument names the file, the field, what was wanted and what was got,
// when a value is missing or out of range, or when the model uses an unsupported feature: another
// architecture, an unknown rotary scaling, soft caps, a quantisation of Hugging Face. Nothing that
// changes a model's answers is ignored.
absl::StatusOr<ModelConfig> ReadModelConfig(const files::OpenedModel& model);

// Each reads one format. The tensors in `weights` show facts that the metadata lacks: a tied head,
// biases, the vocabulary's number of rows.
absl::StatusOr<ModelConfig> ReadGgufModelConfig(const files::GgufMetadata& metadata,
                                                const files::WeightMap& weights);
absl::StatusOr<ModelConfig> ReadHfModelConfig(const nlohmann::json& config, std::string_view file,
                                              const files::WeightMap& weights);

// Far beyond any existing model; a reader may allocate a vector entry for each layer.
inline constexpr int64_t kMaxLayers = 4096;

// Checks ranges and consistency of a config that a reader filled in; `file` begins the error.
absl::Status Validate(const ModelConfig& config, std::string_view file);

// The type that most of the weights have: "Q4_1"; empty without tensors.
std::string DominantWeightType(const files::WeightMap& weights);

// Elements of K and V that one token keeps in the cache, all layers together.
int64_t KvElementsPerToken(const ModelConfig& config);

}  // namespace quire::engine
