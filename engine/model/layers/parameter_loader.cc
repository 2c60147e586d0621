#include "engine/model/layers/parameter_loader.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/layers/rewritten_matrix.h"
#include "kernels/quant/dequantize.h"

namespace quire::engine {
absl::StatusOr<std::unique_ptr<kernels::PreparedWeight>> ParameterLoader::Prepared(
    const StoredParameter& stored, Prepare prepare) {
  if (stored.empty()) return nullptr;
  const int64_t cols = stored.cols;
  std::vector<kernels::WeightView> views;
  std::vector<std::vector<std::byte>> memory;
  int64_t file_bytes = 0;
  for (const NamedRows& part : stored.parts) {
    ASSIGN_OR_RETURN(LoadedMatrix whole, LoadMatrix(part, cols, weights_));
    kernels::WeightView view = whole.view;
    if (!whole.bytes.empty()) memory.push_back(std::move(whole.bytes));
    if (stored.wanted_cols.end > 0) {
      ASSIGN_OR_RETURN(view, Columns(view, stored.wanted_cols, memory));
    }
    const size_t row_bytes = view.bytes.size() / static_cast<size_t>(view.rows);
    for (const RowRange& range : RangesOf(part)) {
      const auto begin = static_cast<size_t>(range.begin), end = static_cast<size_t>(range.end);
      views.push_back({view.type, range.end - range.begin, view.cols,
                       view.bytes.subspan(begin * row_bytes, (end - begin) * row_bytes)});
      num_parameters_ += views.back().rows * view.cols;
      file_bytes += std::ssize(views.back().bytes);
    }
  }
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::PreparedWeight> prepared, (backend_.*prepare)(views));
  // If the prepared weight has no bytes of its own, the backend computes on the bytes of `views`.
  // Rewritten bytes are then kept in memory_.
  if (prepared->bytes() == 0) {
    std::ranges::move(memory, std::back_inserter(memory_));
  } else if (memory.empty()) {
    for (const kernels::WeightView& view : views) weights_.DropPages(view.bytes);
  }
  bytes_ += prepared->bytes() > 0 ? prepared->bytes() : file_bytes;
  return prepared;
}

absl::StatusOr<kernels::WeightView> ParameterLoader::Columns(
    const kernels::WeightView& matrix, const RowRange& cols,
    std::vector<std::vector<std::byte>>& memory) {
  const kernels::WeightTypeTraits& traits = kernels::Traits(matrix.type);
  if (cols.begin % traits.block_elements != 0 || cols.end % traits.block_elements != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "columns of a matrix: want multiples of ", traits.block_elements, ", as ",
        base::ToAbsl(traits.name), " is stored in blocks, got ", cols.begin, " to ", cols.end));
  }
  const auto bytes_of = [&](int64_t n) {
    return static_cast<size_t>(n / traits.block_elements * traits.block_bytes);
  };
  const size_t row_bytes = bytes_of(matrix.cols), wanted_bytes = bytes_of(cols.end - cols.begin);
  std::vector<std::byte>& out = memory.emplace_back(matrix.rows * wanted_bytes);
  for (size_t row = 0; row < static_cast<size_t>(matrix.rows); ++row) {
    std::memcpy(out.data() + row * wanted_bytes,
                matrix.bytes.data() + row * row_bytes + bytes_of(cols.begin), wanted_bytes);
  }
  return kernels::WeightView{matrix.type, matrix.rows, cols.end - cols.begin, out};
}

absl::StatusOr<std::vector<float>> ParameterLoader::Piece(const NamedRows& part) const {
  std::vector<float> values;
  if (part.num_matrices == 0) {
    ASSIGN_OR_RETURN(values, weights_.Vector(part.name, part.rows));
  } else {
    ASSIGN_OR_RETURN(const kernels::WeightView view,
                     weights_.Matrix(part.name, part.num_matrices, part.rows));
    values.resize(static_cast<size_t>(view.rows * view.cols));
    RETURN_IF_ERROR(kernels::Dequantize(view, 0, view.rows, values));
  }
  if (part.form != NamedRows::Form::kTransposedInTurns && part.form != NamedRows::Form::kInTurns) {
    return values;
  }
  std::vector<float> ordered(values.size());
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    const int64_t vector = i / part.rows * part.rows;
    ordered[static_cast<size_t>(vector + PlaceInTurns(i % part.rows, part.rows))] =
        values[static_cast<size_t>(i)];
  }
  return ordered;
}

absl::StatusOr<Parameter> ParameterLoader::Vector(const StoredParameter& stored) {
  if (stored.empty()) return Parameter();
  std::vector<float> values;
  for (const NamedRows& part : stored.parts) {
    ASSIGN_OR_RETURN(const std::vector<float> piece, Piece(part));
    for (const RowRange& range : RangesOf(part)) {
      values.insert(values.end(), piece.begin() + range.begin, piece.begin() + range.end);
    }
  }
  num_parameters_ += static_cast<int64_t>(values.size());
  for (float& value : values) value = (value + stored.offset) * stored.factor;
  return Upload(values);
}

absl::StatusOr<Parameter> ParameterLoader::Upload(const std::vector<float>& values) {
  const int64_t size = static_cast<int64_t>(values.size());
  Parameter parameter;
  ASSIGN_OR_RETURN(parameter.buffer, backend_.Allocate(size * 4));
  RETURN_IF_ERROR(backend_.CopyToDevice(parameter.buffer.data(), values.data(), size * 4));
  RETURN_IF_ERROR(backend_.Synchronize());  // `values` end here
  parameter.view = kernels::TensorView(parameter.buffer.data(), kernels::DType::kF32, {size});
  bytes_ += size * 4;
  return parameter;
}

}  // namespace quire::engine
