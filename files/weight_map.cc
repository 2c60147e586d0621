#include "files/weight_map.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "files/ggml_types.h"
#include "kernels/quant/dequantize.h"

namespace quire::files {

int64_t NumElements(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

std::string ShapeToString(std::span<const int64_t> shape) {
  return "[" + absl::StrJoin(shape, ", ") + "]";
}

const std::vector<UnusableTensor>& WeightMap::unusable_tensors() const {
  static const auto* const kNone = new std::vector<UnusableTensor>();
  return *kNone;
}

absl::StatusOr<const TensorInfo*> WeightMap::Require(std::string_view name,
                                                     std::span<const int64_t> shape) const {
  const TensorInfo* tensor = Find(name);
  if (tensor == nullptr) {
    for (const UnusableTensor& unusable : unusable_tensors()) {
      if (unusable.name != name) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s: want one of the types %s, got %s", name, SupportedGgmlTypes(),
                          unusable.type_name));
    }
    return absl::NotFoundError(
        absl::StrFormat("tensor %s: want %s, got nothing: the model file has no "
                        "tensor of that name",
                        name, ShapeToString(shape)));
  }
  if (!std::ranges::equal(tensor->shape, shape)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor %s: want %s, got %s", name, ShapeToString(shape), ShapeToString(tensor->shape)));
  }
  return tensor;
}

absl::StatusOr<kernels::WeightView> WeightMap::Matrix(std::string_view name, int64_t rows,
                                                      int64_t cols) const {
  const std::array<int64_t, 2> shape = {rows, cols};
  ASSIGN_OR_RETURN(const TensorInfo* tensor, Require(name, shape));
  return kernels::WeightView{
      .type = tensor->type, .rows = rows, .cols = cols, .bytes = tensor->bytes};
}

absl::StatusOr<kernels::WeightView> WeightMap::Matrices(std::string_view name, int64_t count,
                                                        int64_t rows, int64_t cols) const {
  const std::array<int64_t, 3> shape = {count, rows, cols};
  ASSIGN_OR_RETURN(const TensorInfo* tensor, Require(name, shape));
  return kernels::WeightView{
      .type = tensor->type, .rows = count * rows, .cols = cols, .bytes = tensor->bytes};
}

absl::StatusOr<std::vector<float>> WeightMap::Vector(std::string_view name, int64_t size) const {
  const std::array<int64_t, 1> shape = {size};
  ASSIGN_OR_RETURN(const TensorInfo* tensor, Require(name, shape));
  std::vector<float> values(static_cast<size_t>(size));
  const kernels::WeightView row = {
      .type = tensor->type, .rows = 1, .cols = size, .bytes = tensor->bytes};
  RETURN_IF_ERROR(kernels::Dequantize(row, 0, 1, values));
  return values;
}

const TensorInfo* TensorList::Find(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &TensorInfo::name);
  return found == tensors_.end() ? nullptr : &*found;
}

}  // namespace quire::files
