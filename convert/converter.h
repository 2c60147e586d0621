#pragma once

// Converts a model into a quantised GGUF file, as the program quire-convert does.

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
  std::string_view tensor;  // the tensor being written
  int64_t num_weights = 0;  // the weights written so far
  int64_t total_weights = 0;
};

struct ConvertOptions {
  // The type of the matrices whose rows are a whole number of the type's blocks. A matrix with
  // other rows becomes Q5_0 instead of Q4_K and Q8_0 instead of Q6_K, or F16 if the length of a row
  // is no multiple of 32. In a four-bit file the type of the head is Q6_K instead.
  kernels::WeightType type = kernels::WeightType::kQ8_0;
  int num_threads = 1;
  std::function<void(const ConvertProgress&)> progress = [](const ConvertProgress&) {};
};

// Parses the name of a type that can be written: F32, F16, BF16, Q8_0, Q4_0 or Q4_K, in upper or
// lower case. For any other name InvalidArgument lists these types.
absl::StatusOr<kernels::WeightType> ParseConvertType(std::string_view name);

struct ConvertReport {
  int64_t num_tensors = 0;
  int64_t num_weights = 0;
  int64_t file_bytes = 0;
  std::map<std::string, int64_t> weights_by_type;  // by the type's name: "Q4_K"
  // The error of the quantised weights: the square root of (the sum of squared errors / the sum of
  // squared weights).
  double relative_error = 0.0;
  std::vector<std::string> warnings;  // properties of the tokenizer that the file lacks
};

// Converts a Hugging Face directory to the GGUF file `path`. The file is written only if our own
// readers would read the same model from it. `path` is replaced only by a complete file.
// InvalidArgument or Unimplemented names a property for which GGUF has no place.
absl::StatusOr<ConvertReport> ConvertToGguf(const files::OpenedModel& model,
                                            const std::string& path, const ConvertOptions& options);

// Converts a model without its tokenizer. `more` holds values to write besides those of `config`.
absl::StatusOr<ConvertReport> ConvertWeights(const engine::ModelConfig& config,
                                             const engine::TensorNames& names,
                                             const files::WeightMap& weights,
                                             const files::GgufValues& more, const std::string& path,
                                             const ConvertOptions& options);

}  // namespace quire::convert
