#pragma once

// Copies weights from the memory of a mapped file to the device, in the dtype of activations,
// packed, or in e4m3.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/dtype.h"
#include "kernels/quant/weight_view.h"

namespace quire::kernels::cuda {

// The copies go through two pieces of pinned memory in turn, so that the device copies one piece
// while threads of the host fill the other.
class WeightUpload {
 public:
  // `device` must outlive this object.
  explicit WeightUpload(Device& device) : device_(device) {}

  // Writes all rows of `weight`, which must be valid, to device memory as `dtype`: f32, f16 or
  // bf16. Its bytes are not needed after the call, but the last pieces may still be on their way to
  // the device.
  absl::Status Write(const WeightView& weight, DType dtype, void* to);

  // The same for all rows in the packed form (packed_weight.h), which the type of `weight` must
  // have.
  absl::Status WritePacked(const WeightView& weight, void* to);

  // The same for all codes and all scales of rows in e4m3, for which Fp8ScalesOf (fp8_weight.h)
  // returned `scales`.
  absl::Status WriteCodes(const WeightView& weight, void* to);
  absl::Status WriteScales(const WeightView& weight, GemmScales scales, void* to);

  static constexpr int64_t kPieceBytes = int64_t{16} << 20;

 private:
  struct Piece {
    DeviceBuffer memory;
    std::unique_ptr<Event> copied;
    bool is_in_flight = false;
  };
  // Writes `count` items of `item_bytes` to the device. fill(first, count, to) writes some of them
  // to host memory, and is called on several threads.
  absl::Status WriteItems(
      int64_t count, int64_t item_bytes, void* to,
      absl::FunctionRef<absl::Status(int64_t first, int64_t count, std::byte* to)> fill);
  // Returns a piece that the device does not read, with room for `bytes`.
  absl::StatusOr<Piece*> NextPiece(int64_t bytes);

  Device& device_;
  std::array<Piece, 2> pieces_;
  size_t last_piece_ = 0;
};

}  // namespace quire::kernels::cuda
