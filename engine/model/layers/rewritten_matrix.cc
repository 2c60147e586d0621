#include "engine/model/layers/rewritten_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/scaled_matrix.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/float16.h"

namespace quire::engine {
namespace {

using kernels::WeightType;

absl::Status CheckPlain(const kernels::WeightView& matrix) {
  RETURN_IF_ERROR(kernels::ValidateWeight(matrix));
  if (kernels::Traits(matrix.type).block_elements == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a matrix that is stored otherwise than it multiplies: want F32, F16 or BF16, got ",
      base::ToAbsl(kernels::Traits(matrix.type).name)));
}

// Returns the rows of `part`, whose form is not kAsIs.
absl::StatusOr<std::vector<std::byte>> Rewritten(const NamedRows& part,
                                                 const kernels::WeightView& in_file) {
  if (part.form == NamedRows::Form::kUnitRows) return WithUnitRows(in_file);
  if (part.form == NamedRows::Form::kInTurns) return EvenRowsFirst(in_file);
  return Transposed(in_file, std::max<int64_t>(1, part.num_matrices),
                    part.form == NamedRows::Form::kTransposedInTurns);
}

}  // namespace

absl::StatusOr<std::vector<std::byte>> Transposed(const kernels::WeightView& matrices,
                                                  int64_t num_matrices, bool in_turns) {
  RETURN_IF_ERROR(CheckPlain(matrices));
  const auto width = static_cast<int64_t>(kernels::Traits(matrices.type).block_bytes);
  const int64_t rows = matrices.rows / num_matrices, cols = matrices.cols;
  std::vector<std::byte> out(matrices.bytes.size());
  for (int64_t row = 0; row < matrices.rows; ++row) {
    const int64_t matrix = row / rows * rows * cols;
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t place = in_turns ? PlaceInTurns(col, cols) : col;
      std::memcpy(out.data() + (matrix + place * rows + row % rows) * width,
                  matrices.bytes.data() + (row * cols + col) * width, static_cast<size_t>(width));
    }
  }
  return out;
}

std::vector<std::byte> EvenRowsFirst(const kernels::WeightView& matrix) {
  std::vector<std::byte> out(matrix.bytes.size());
  const size_t row_bytes = matrix.bytes.size() / static_cast<size_t>(matrix.rows);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const auto from = static_cast<size_t>(row) * row_bytes;
    const auto to = static_cast<size_t>(PlaceInTurns(row, matrix.rows)) * row_bytes;
    std::memcpy(out.data() + to, matrix.bytes.data() + from, row_bytes);
  }
  return out;
}

absl::StatusOr<std::vector<std::byte>> WithUnitRows(const kernels::WeightView& matrix) {
  RETURN_IF_ERROR(CheckPlain(matrix));
  std::vector<std::byte> out(matrix.bytes.size());
  std::vector<float> values(static_cast<size_t>(matrix.cols));
  std::byte* end = out.data();
  for (int64_t row = 0; row < matrix.rows; ++row) {
    RETURN_IF_ERROR(kernels::Dequantize(matrix, row, 1, values));
    double squares = 0.0;
    for (const float value : values) squares += double{value} * value;
    // torch.nn.functional.normalize, with which the model was trained, has the same lower bound.
    const double length = std::max(std::sqrt(squares), 1e-12);
    for (const float value : values) {
      const auto unit = static_cast<float>(value / length);
      if (matrix.type == WeightType::kF32) {
        std::memcpy(end, &unit, sizeof(unit));
        end += sizeof(unit);
      } else {
        const uint16_t half =
            matrix.type == WeightType::kF16 ? kernels::F32ToF16(unit) : kernels::F32ToBf16(unit);
        std::memcpy(end, &half, sizeof(half));
        end += sizeof(half);
      }
    }
  }
  return out;
}

absl::StatusOr<kernels::WeightView> MatrixInFile(const NamedRows& part, int64_t cols,
                                                 const files::WeightMap& weights) {
  const bool transposed =
      part.form == NamedRows::Form::kTransposed || part.form == NamedRows::Form::kTransposedInTurns;
  const int64_t rows = transposed ? cols : part.rows, width = transposed ? part.rows : cols;
  return part.num_matrices != 0 ? weights.Matrices(part.name, part.num_matrices, rows, width)
                                : weights.Matrix(part.name, rows, width);
}

absl::StatusOr<LoadedMatrix> LoadMatrix(const NamedRows& part, int64_t cols,
                                        const files::WeightMap& weights) {
  ASSIGN_OR_RETURN(const kernels::WeightView in_file, MatrixInFile(part, cols, weights));
  LoadedMatrix matrix = {.view = in_file};
  if (in_file.type == WeightType::kF8E4M3) {
    ASSIGN_OR_RETURN(matrix.bytes, WithScales(part.name, in_file.rows, cols, weights));
    matrix.view.type = WeightType::kF8E4M3Scaled;
  } else if (part.form != NamedRows::Form::kAsIs) {
    ASSIGN_OR_RETURN(matrix.bytes, Rewritten(part, in_file));
    matrix.view.rows = in_file.rows * in_file.cols / cols;
    matrix.view.cols = cols;
  } else {
    return matrix;
  }
  matrix.view.bytes = matrix.bytes;
  weights.DropPages(in_file.bytes);
  return matrix;
}

}  // namespace quire::engine
