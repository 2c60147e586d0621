#pragma once

// A model becomes a GGUF file, quantised: what quire-convert does.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/model/model_config.h"
#include "engine/model/tensor_names.h"
#include "engine/weights/gguf_values.h"
#include "engine/weights/model_files.h"
#include "engine/weights/weight_map.h"
#include "kernels/weight_view.h"

namespace quire::engine {

struct ConvertProgress {
  std::string_view tensor;  // being written
  int64_t num_weights = 0;  // written, of all
  int64_t total_weights = 0;
};

struct ConvertOptions {
  // Of the matrices, where their rows are a whole number of its blocks. The head of a file in four
  // bits is Q6_K; rows that are no multiple of 256 are Q5_0 instead of Q4_K and Q8_0 instead of
  // Q6_K, and those that are no multiple of 32, F16.
  kernels::WeightType type = kernels::WeightType::kQ8_0;
  int num_threads = 1;
  std::function<void(const ConvertProgress&)> progress = [](const ConvertProgress&) {};
};

// The types that a file may be written in, F32, F16, BF16, Q8_0, Q4_0 and Q4_K. InvalidArgument
// names them for any other name; letters of either case.
absl::StatusOr<kernels::WeightType> ParseConvertType(std::string_view name);

struct ConvertReport {
  int64_t num_tensors = 0;
  int64_t num_weights = 0;
  int64_t file_bytes = 0;
  std::map<std::string, int64_t> weights_by_type;  // "Q4_K": how many
  // Of the weights read back: the root of their squared errors over their squares.
  double relative_error = 0.0;
  std::vector<std::string> warnings;  // what the file cannot say, of the tokenizer
};

// Writes `path` from a Hugging Face directory. Nothing is written that our own readers read
// otherwise, and `path` is replaced only by a whole file. InvalidArgument or Unimplemented names
// what a GGUF file has no place for.
absl::StatusOr<ConvertReport> ConvertToGguf(const OpenedModel& model, const std::string& path,
                                            const ConvertOptions& options);

// The same of weights alone; `more` is what the file is to say besides what the model is.
absl::StatusOr<ConvertReport> ConvertWeights(const ModelConfig& config, const TensorNames& names,
                                             const WeightMap& weights, const GgufValues& more,
                                             const std::string& path,
                                             const ConvertOptions& options);

}  // namespace quire::engine
