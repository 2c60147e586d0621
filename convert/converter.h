#pragma once

// Converts a model into a quantised GGUF file: the work of quire-convert.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/model/model_config.h"
#include "engine/model/tensor_names.h"
#include "files/gguf_values.h"
#include "files/model_files.h"
#include "files/weight_map.h"
#include "kernels/quant/weight_view.h"

namespace quire::convert {

struct ConvertProgress {
  std::string_view tensor;  // being written
  int64_t num_weights = 0;  // written so far
  int64_t total_weights = 0;
};

struct ConvertOptions {
  // The type of matrices, if a row is a whole number of the type's blocks. Other rows become Q5_0
  // instead of Q4_K and Q8_0 instead of Q6_K, or F16 if they are no multiple of 32. The head of a
  // four-bit file is Q6_K.
  kernels::WeightType type = kernels::WeightType::kQ8_0;
  int num_threads = 1;
  std::function<void(const ConvertProgress&)> progress = [](const ConvertProgress&) {};
};

// Reads the type of a file to write: F32, F16, BF16, Q8_0, Q4_0 or Q4_K, in either case.
// InvalidArgument lists these for any other name.
absl::StatusOr<kernels::WeightType> ParseConvertType(std::string_view name);

struct ConvertReport {
  int64_t num_tensors = 0;
  int64_t num_weights = 0;
  int64_t file_bytes = 0;
  std::map<std::string, int64_t> weights_by_type;  // by name: "Q4_K"
  // The error of the weights read back: the square root of (sum of squared errors / sum of
  // squares).
  double relative_error = 0.0;
  std::vector<std::string> warnings;  // properties of the tokenizer that the file lacks
};

// Writes `path` from a Hugging Face directory. The file is written only if our own readers read the
// same model from it, and `path` is replaced only by a complete file. InvalidArgument or
// Unimplemented names a property for which GGUF has no place.
absl::StatusOr<ConvertReport> ConvertToGguf(const files::OpenedModel& model,
                                            const std::string& path, const ConvertOptions& options);

// The same for weights alone; `more` holds the file's values beyond the model's own.
absl::StatusOr<ConvertReport> ConvertWeights(const engine::ModelConfig& config,
                                             const engine::TensorNames& names,
                                             const files::WeightMap& weights,
                                             const files::GgufValues& more, const std::string& path,
                                             const ConvertOptions& options);

}  // namespace quire::convert
