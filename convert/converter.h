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
  // The type of the matrices. In a four-bit file, the head has the type Q6_K instead. If the rows
  // of a matrix are not a whole number of blocks, the matrix gets Q5_0 instead of Q4_K, or Q8_0
  // instead of Q6_K. If the length of a row is not a multiple of 32, the matrix gets F16 instead of
  // a quantised type.
  kernels::WeightType type = kernels::WeightType::kQ8_0;
  int num_threads = 1;
  bool for_quire_alone = false;  // the file need not mean the same to llama.cpp
  std::function<void(const ConvertProgress&)> progress = [](const ConvertProgress&) {};
};

// Parses the name of a type that can be written: F32, F16, BF16, Q8_0, Q4_0 or Q4_K, in upper or
// lower case. For any other name, returns an InvalidArgument error that lists these types.
absl::StatusOr<kernels::WeightType> ParseConvertType(std::string_view name);

struct ConvertReport {
  int64_t num_tensors = 0;
  int64_t num_weights = 0;
  int64_t file_bytes = 0;
  std::map<std::string, int64_t> weights_by_type;  // by the type's name: "Q4_K"
  // The error of the quantised weights: the square root of (the sum of squared errors / the sum of
  // squared weights).
  double relative_error = 0.0;
  // Properties of the tokenizer that the file lacks, and what llama.cpp reads otherwise.
  std::vector<std::string> warnings;
};

// Converts a Hugging Face directory to the GGUF file `path`. The file is written only if Quire's
// own readers would read the same model from it. `path` is replaced only by a complete file. If
// GGUF has no place for a property of the model, returns InvalidArgument or Unimplemented with the
// name of the property. Returns InvalidArgument as well if llama.cpp cannot load the file, unless
// it is for Quire alone.
absl::StatusOr<ConvertReport> ConvertToGguf(const files::OpenedModel& model,
                                            const std::string& path, const ConvertOptions& options);

// Converts a model without its tokenizer. `more` has key-value pairs that are written besides those
// of `config`.
absl::StatusOr<ConvertReport> ConvertWeights(const engine::ModelConfig& config,
                                             const engine::TensorNames& names,
                                             const files::WeightMap& weights,
                                             const files::GgufValues& more, const std::string& path,
                                             const ConvertOptions& options);

}  // namespace quire::convert
