#pragma once

// Plans the tensors of a GGUF file. Each planned tensor is made from rows of the tensors of the
// model.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/model/decoder_tensors.h"
#include "engine/model/model_config.h"
#include "engine/model/tensor_names.h"
#include "files/weight_map.h"
#include "kernels/quant/weight_view.h"

namespace quire::convert {

// Rows [begin, begin + count) of the matrix `source`, or elements of the vector `source`.
struct SourceRows {
  engine::NamedRows source;  // `ranges` is empty
  int64_t begin = 0, count = 0;
};

// Concatenates `runs`, and returns rows [begin, begin + count) of the result. A Run is a range of
// rows with the members `begin` and `count`.
template <typename Run>
std::vector<Run> SliceRuns(const std::vector<Run>& runs, int64_t begin, int64_t count) {
  std::vector<Run> slice;
  for (const Run& run : runs) {
    const int64_t skipped = std::min(begin, run.count);
    const int64_t taken = std::min(run.count - skipped, count);
    begin -= skipped;
    count -= taken;
    if (taken == 0) continue;
    slice.push_back(run);
    slice.back().begin += skipped;
    slice.back().count = taken;
  }
  return slice;
}

struct PlannedTensor {
  std::string name;
  kernels::WeightType type = kernels::WeightType::kF32;
  std::vector<int64_t> shape;    // row-major, outermost first
  std::vector<SourceRows> rows;  // stacked in this order
  int64_t cols = 0;              // the length of a row; 0: the sources are vectors
  float offset = 0.0f;           // added to each element
};

// Chooses the type of a matrix by its role and its number of columns.
using ChooseType = std::function<kernels::WeightType(engine::ParameterRole role, int64_t cols)>;

// Plans the embedding, the layers in order, and the head. Vectors, routers and learned positions
// are F32. `gguf_layout` is the order that the rotary rows of each head have in the new file.
// Returns InvalidArgument if the GGUF architecture has no name for a parameter, or if a tensor of
// the model would be left out.
absl::StatusOr<std::vector<PlannedTensor>> PlanTensors(const engine::ModelConfig& config,
                                                       const engine::TensorNames& names,
                                                       const files::WeightMap& weights,
                                                       kernels::RopeLayout gguf_layout,
                                                       const engine::TensorNames& gguf_names,
                                                       const ChooseType& choose);

}  // namespace quire::convert
