#include "kernels/cuda/product/weight_upload.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/product/fp8_weight.h"
#include "kernels/cuda/product/pack_weight.h"
#include "kernels/cuda/product/packed_weight.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/float16.h"

namespace quire::kernels::cuda {
namespace {

// Fewer bytes than this are not worth a thread, whose start takes some 20 us.
constexpr int64_t kBytesPerThread = int64_t{1} << 20;
// More threads than this do not fill pinned memory faster.
constexpr int64_t kMostThreads = 16;

bool HasDtype(WeightType type, DType dtype) {
  return (type == WeightType::kF32 && dtype == DType::kF32) ||
         (type == WeightType::kF16 && dtype == DType::kF16) ||
         (type == WeightType::kBF16 && dtype == DType::kBF16);
}

// Writes `count` rows from `first` on as `dtype`.
absl::Status WriteRows(const WeightView& weight, DType dtype, int64_t first, int64_t count,
                       std::byte* to) {
  const int64_t row_bytes = weight.cols * SizeOf(dtype);
  if (HasDtype(weight.type, dtype)) {
    std::memcpy(to, weight.bytes.data() + first * row_bytes,
                static_cast<size_t>(count * row_bytes));
    return absl::OkStatus();
  }
  if (dtype == DType::kF32) {
    return Dequantize(weight, first, count,
                      {reinterpret_cast<float*>(to), static_cast<size_t>(count * weight.cols)});
  }
  std::vector<float> row(static_cast<size_t>(weight.cols));
  const auto narrow = dtype == DType::kF16 ? F32ToF16 : F32ToBf16;
  for (int64_t i = 0; i < count; ++i) {
    RETURN_IF_ERROR(Dequantize(weight, first + i, 1, row));
    std::transform(row.begin(), row.end(), reinterpret_cast<uint16_t*>(to + i * row_bytes), narrow);
  }
  return absl::OkStatus();
}

// Calls body(first, count) for parts of `count` items, on `num_threads` threads.
absl::Status InParallel(int64_t count, int64_t num_threads,
                        absl::FunctionRef<absl::Status(int64_t first, int64_t count)> body) {
  if (num_threads <= 1) return body(0, count);
  const int64_t share = base::CeilDiv(count, num_threads);
  std::vector<absl::Status> results(static_cast<size_t>(num_threads));
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < num_threads; ++i) {
    const int64_t first = std::min(i * share, count), end = std::min(first + share, count);
    threads.emplace_back(
        [&, i, first, end] { results[static_cast<size_t>(i)] = body(first, end - first); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightUpload::Piece*> WeightUpload::NextPiece(int64_t bytes) {
  last_piece_ = 1 - last_piece_;
  Piece& piece = pieces_[last_piece_];
  if (piece.is_in_flight) RETURN_IF_ERROR(device_.Wait(*piece.copied));
  piece.is_in_flight = false;
  if (piece.memory.bytes() < bytes) {
    ASSIGN_OR_RETURN(piece.memory, device_.AllocateHost(bytes));
  }
  if (piece.copied == nullptr) {
    ASSIGN_OR_RETURN(piece.copied, device_.CreateEvent());
  }
  return &piece;
}

absl::Status WeightUpload::Write(const WeightView& weight, DType dtype, void* to) {
  return WriteItems(weight.rows, weight.cols * SizeOf(dtype), to,
                    [&](int64_t first, int64_t count, std::byte* rows) {
                      return WriteRows(weight, dtype, first, count, rows);
                    });
}

absl::Status WeightUpload::WritePacked(const WeightView& weight, void* to) {
  const int64_t group_bytes = PackedGroupBytes(weight.type, weight.cols);
  return WriteItems(NumGroups(weight.rows), group_bytes, to,
                    [&](int64_t first, int64_t count, std::byte* groups) {
                      for (int64_t i = 0; i < count; ++i) {
                        PackGroup(weight, first + i, groups + i * group_bytes);
                      }
                      return absl::OkStatus();
                    });
}

absl::Status WeightUpload::WriteCodes(const WeightView& weight, void* to) {
  return WriteItems(weight.rows, weight.cols, to,
                    [&](int64_t first, int64_t count, std::byte* rows) {
                      CopyCodes(weight, first, count, rows);
                      return absl::OkStatus();
                    });
}

absl::Status WeightUpload::WriteScales(const WeightView& weight, GemmScales scales, void* to) {
  return WriteItems(weight.rows / RowsOfScales(scales), ScaleRowBytes(scales, weight.cols), to,
                    [&](int64_t first, int64_t count, std::byte* rows) {
                      CopyScales(weight, scales, first, count, rows);
                      return absl::OkStatus();
                    });
}

absl::Status WeightUpload::WriteItems(
    int64_t num_items, int64_t item_bytes, void* to,
    absl::FunctionRef<absl::Status(int64_t first, int64_t count, std::byte* to)> fill) {
  const int64_t items_at_once = std::clamp<int64_t>(kPieceBytes / item_bytes, 1, num_items);
  for (int64_t first = 0; first < num_items; first += items_at_once) {
    const int64_t count = std::min(items_at_once, num_items - first);
    const int64_t bytes = count * item_bytes;
    ASSIGN_OR_RETURN(Piece* const piece, NextPiece(items_at_once * item_bytes));
    auto* const memory = static_cast<std::byte*>(piece->memory.data());
    const int64_t num_threads =
        std::min({bytes / kBytesPerThread, count, kMostThreads,
                  static_cast<int64_t>(std::thread::hardware_concurrency())});
    RETURN_IF_ERROR(InParallel(count, num_threads, [&](int64_t item, int64_t items) {
      return fill(first + item, items, memory + item * item_bytes);
    }));
    RETURN_IF_ERROR(
        device_.CopyToDevice(static_cast<std::byte*>(to) + first * item_bytes, memory, bytes));
    RETURN_IF_ERROR(device_.Mark(*piece->copied));
    piece->is_in_flight = true;
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
