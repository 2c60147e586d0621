#include "engine/model/scaled_matrix.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/math.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/weight_view.h"

namespace quire::engine {
namespace {

constexpr int64_t kFileBlock = 128;  // rows and columns of a block of the file
static_assert(kFileBlock % kernels::kScaledBlock == 0);

struct Scales {
  std::string name;
  std::vector<float> values;
  // The scale of row r and column c is values[r / rows_of_scale * per_row + c / cols_of_scale].
  int64_t rows_of_scale = 0, cols_of_scale = 0, per_row = 0;
};

absl::Status Error(std::string_view tensor, const std::string& wanted_and_got) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", base::ToAbsl(tensor), ": ", wanted_and_got));
}

absl::StatusOr<const files::TensorInfo*> FindScales(std::string_view name,
                                                    const files::WeightMap& weights) {
  const std::string plain = absl::StrCat(base::ToAbsl(name), "_scale"), inverse = plain + "_inv";
  const files::TensorInfo* first = weights.Find(plain);
  const files::TensorInfo* second = weights.Find(inverse);
  if (first != nullptr && second != nullptr) {
    return Error(inverse, "want one tensor of scales, got " + plain + " too");
  }
  if (first != nullptr) return first;
  if (second != nullptr) return second;
  for (const files::UnusableTensor& unusable : weights.unusable_tensors()) {
    if (unusable.name == plain || unusable.name == inverse) {
      return Error(unusable.name, "want scales in F32, F16 or BF16, got " + unusable.type_name);
    }
  }
  return Error(name, absl::StrCat("want the scales of its F8_E4M3 weights in ", plain, " or ",
                                  inverse, ", got neither"));
}

absl::StatusOr<Scales> ReadScales(std::string_view name, int64_t rows, int64_t cols,
                                  const files::WeightMap& weights) {
  if (rows <= 0 || cols <= 0 || cols % kernels::kScaledBlock != 0) {
    return Error(name, absl::StrFormat("want F8_E4M3 in rows of a multiple of %d weights, got %d: "
                                       "use the model in BF16",
                                       kernels::kScaledBlock, cols));
  }
  ASSIGN_OR_RETURN(const files::TensorInfo* tensor, FindScales(name, weights));
  Scales scales = {.name = tensor->name};
  const int64_t row_blocks = base::CeilDiv(rows, kFileBlock);
  const int64_t col_blocks = base::CeilDiv(cols, kFileBlock);
  const auto is_shape = [&](const std::vector<int64_t>& shape) { return tensor->shape == shape; };
  if (is_shape({}) || is_shape({1})) {
    scales.rows_of_scale = rows, scales.cols_of_scale = cols, scales.per_row = 1;
  } else if (is_shape({rows}) || is_shape({rows, 1})) {
    scales.rows_of_scale = 1, scales.cols_of_scale = cols, scales.per_row = 1;
  } else if (is_shape({row_blocks, col_blocks})) {
    scales.rows_of_scale = scales.cols_of_scale = kFileBlock, scales.per_row = col_blocks;
  } else {
    return Error(
        tensor->name,
        absl::StrFormat("want [], [1], [%d], [%d, 1] or, for blocks of 128 x 128, "
                        "[%d, %d], got %s",
                        rows, rows, row_blocks, col_blocks, files::ShapeToString(tensor->shape)));
  }
  if (tensor->type > kernels::WeightType::kBF16) {
    return Error(tensor->name, absl::StrCat("want scales in F32, F16 or BF16, got ",
                                            base::ToAbsl(kernels::Traits(tensor->type).name)));
  }
  const int64_t count = files::NumElements(tensor->shape);
  scales.values.resize(static_cast<size_t>(count));
  RETURN_IF_ERROR(
      kernels::Dequantize({.type = tensor->type, .rows = 1, .cols = count, .bytes = tensor->bytes},
                          0, 1, scales.values));
  for (int64_t i = 0; i < count; ++i) {
    const float scale = scales.values[static_cast<size_t>(i)];
    if (!(scale > 0.0f && scale <= kernels::kLargestE4M3Scale)) {
      return Error(tensor->name,
                   absl::StrFormat("element %d: want a scale above 0 and at most %g, got %g", i,
                                   kernels::kLargestE4M3Scale, scale));
    }
  }
  return scales;
}

}  // namespace

absl::StatusOr<std::string> CheckScales(std::string_view name, int64_t rows, int64_t cols,
                                        const files::WeightMap& weights) {
  ASSIGN_OR_RETURN(Scales scales, ReadScales(name, rows, cols, weights));
  return std::move(scales.name);
}

absl::StatusOr<std::vector<std::byte>> WithScales(std::string_view name, int64_t rows, int64_t cols,
                                                  const files::WeightMap& weights) {
  ASSIGN_OR_RETURN(const Scales scales, ReadScales(name, rows, cols, weights));
  ASSIGN_OR_RETURN(const kernels::WeightView matrix, weights.Matrix(name, rows, cols));
  const auto is_nan = [](std::byte code) { return (code | std::byte{0x80}) == std::byte{0xff}; };
  const auto nan = std::ranges::find_if(matrix.bytes, is_nan);
  if (nan != matrix.bytes.end()) {
    const int64_t at = nan - matrix.bytes.begin();
    return Error(
        name, absl::StrFormat("row %d, column %d: want a number, got NaN", at / cols, at % cols));
  }
  std::vector<std::byte> out(
      static_cast<size_t>(rows * cols / kernels::kScaledBlock * kernels::kScaledBlockBytes));
  std::byte* to = out.data();
  const std::byte* codes = matrix.bytes.data();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = row / scales.rows_of_scale * scales.per_row;
    for (int64_t col = 0; col < cols; col += kernels::kScaledBlock) {
      const float scale = scales.values[static_cast<size_t>(first + col / scales.cols_of_scale)];
      std::memcpy(to, &scale, sizeof(scale));
      std::memcpy(to + sizeof(scale), codes, kernels::kScaledBlock);
      to += kernels::kScaledBlockBytes;
      codes += kernels::kScaledBlock;
    }
  }
  return out;
}

}  // namespace quire::engine
