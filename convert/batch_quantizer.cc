#include "convert/batch_quantizer.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/quantize.h"

namespace quire::convert {
namespace {

constexpr int64_t kWeightsOfThread = int64_t{1} << 20;

}  // namespace

BatchQuantizer::BatchQuantizer(int num_threads)
    : shares_(static_cast<size_t>(std::max(1, num_threads))) {}

int64_t BatchQuantizer::RowsOfBatch(int64_t cols) const {
  return std::max<int64_t>(1, kWeightsOfThread * std::ssize(shares_) / cols);
}

double BatchQuantizer::relative_error() const {
  return squares_ > 0.0 ? std::sqrt(squared_error_ / squares_) : 0.0;
}

absl::Status BatchQuantizer::RunShare(const RowReader& rows, kernels::WeightType type,
                                      int64_t begin, int64_t count, std::span<std::byte> out,
                                      Share& share) {
  const int64_t cols = rows.cols();
  share.rows.resize(static_cast<size_t>(count * cols));
  share.read_back.resize(share.rows.size());
  RETURN_IF_ERROR(rows.Read(begin, count, share.rows));
  RETURN_IF_ERROR(kernels::Quantize(type, share.rows, cols, out));
  RETURN_IF_ERROR(kernels::Dequantize({type, count, cols, out}, 0, count, share.read_back));
  for (size_t i = 0; i < share.rows.size(); ++i) {
    const double error = double{share.rows[i]} - share.read_back[i];
    share.squared_error += error * error;
    share.squares += double{share.rows[i]} * share.rows[i];
  }
  return absl::OkStatus();
}

absl::Status BatchQuantizer::Run(const RowReader& rows, kernels::WeightType type, int64_t begin,
                                 int64_t count, std::vector<std::byte>& out) {
  const kernels::WeightTypeTraits& traits = kernels::Traits(type);
  const int64_t row_bytes = rows.cols() / traits.block_elements * traits.block_bytes;
  out.resize(static_cast<size_t>(count * row_bytes));
  const int64_t per_thread = base::CeilDiv(count, std::ssize(shares_));
  {
    std::vector<std::jthread> threads;
    for (int64_t i = 0; i < std::ssize(shares_); ++i) {
      const int64_t first = std::min(count, i * per_thread);
      const int64_t size = std::min(count - first, per_thread);
      if (size == 0) break;
      const std::span<std::byte> bytes = std::span(out).subspan(
          static_cast<size_t>(first * row_bytes), static_cast<size_t>(size * row_bytes));
      Share& share = shares_[static_cast<size_t>(i)];
      threads.emplace_back([=, &rows, &share] {
        share.status = RunShare(rows, type, begin + first, size, bytes, share);
      });
    }
  }
  for (Share& share : shares_) {
    RETURN_IF_ERROR(share.status);
    squared_error_ += share.squared_error;
    squares_ += share.squares;
    share.squared_error = share.squares = 0.0;
  }
  return absl::OkStatus();
}

}  // namespace quire::convert
