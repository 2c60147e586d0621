#include "convert/row_reader.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "engine/model/layers/rewritten_matrix.h"
#include "kernels/quant/dequantize.h"

namespace quire::convert {
namespace {

absl::StatusOr<std::vector<float>> ReadVector(const PlannedTensor& tensor,
                                              const files::WeightMap& weights) {
  std::vector<float> values;
  for (const SourceRows& run : tensor.rows) {
    ASSIGN_OR_RETURN(const std::vector<float> whole,
                     weights.Vector(run.source.name, run.source.rows));
    const auto begin = whole.begin() + run.begin;
    values.insert(values.end(), begin, begin + run.count);
  }
  for (float& value : values) value += tensor.offset;
  return values;
}

}  // namespace

absl::Status CheckSources(const PlannedTensor& tensor, const files::WeightMap& weights) {
  if (tensor.cols == 0) return ReadVector(tensor, weights).status();
  for (const SourceRows& run : tensor.rows) {
    RETURN_IF_ERROR(engine::MatrixInFile(run.source, tensor.cols, weights).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<RowReader> RowReader::Create(const PlannedTensor& tensor,
                                            const files::WeightMap& weights) {
  RowReader reader;
  if (tensor.cols == 0) {
    reader.num_rows_ = 1;
    ASSIGN_OR_RETURN(reader.vector_, ReadVector(tensor, weights));
    reader.cols_ = std::ssize(reader.vector_);
    return reader;
  }
  reader.cols_ = tensor.cols;
  for (const SourceRows& run : tensor.rows) {
    const auto [at, is_new] = reader.matrices_.try_emplace(run.source.name);
    engine::LoadedMatrix& matrix = at->second;
    if (is_new) {
      ASSIGN_OR_RETURN(matrix, engine::LoadMatrix(run.source, tensor.cols, weights));
    }
    reader.runs_.push_back({matrix.view, run.begin, run.count});
    reader.num_rows_ += run.count;
  }
  return reader;
}

absl::Status RowReader::Read(int64_t begin, int64_t count, std::span<float> out) const {
  if (runs_.empty()) {
    std::ranges::copy(vector_, out.begin());
    return absl::OkStatus();
  }
  for (const Run& run : SliceRuns(runs_, begin, count)) {
    const auto size = static_cast<size_t>(run.count * cols_);
    RETURN_IF_ERROR(kernels::Dequantize(run.view, run.begin, run.count, out.subspan(0, size)));
    out = out.subspan(size);
  }
  return absl::OkStatus();
}

void RowReader::Drop(const files::WeightMap& weights) const {
  for (const auto& [name, matrix] : matrices_) {
    if (matrix.bytes.empty()) weights.DropPages(matrix.view.bytes);
  }
}

}  // namespace quire::convert
