#include "kernels/cuda/device/tensor_map.h"

#include "absl/strings/str_format.h"

namespace quire::kernels::cuda {

absl::Status Validate(const TensorMapSpec& spec) {
  constexpr int64_t kMaxBoxDim = 256;
  constexpr int64_t kGranule = 16;  // bytes; the unit of addresses and strides
  constexpr int64_t kSwizzleBytes = 128;
  if (spec.rank < 1 || spec.rank > TensorMapSpec::kMaxRank) {
    return absl::InvalidArgumentError(absl::StrFormat("tensor map: want rank 1 to %d, got %d",
                                                      TensorMapSpec::kMaxRank, spec.rank));
  }
  if (reinterpret_cast<uintptr_t>(spec.data) % kGranule != 0 || spec.data == nullptr) {
    return absl::InvalidArgumentError("tensor map: want data aligned to 16 bytes");
  }
  if (spec.element_bytes != 1 && spec.element_bytes != 2 && spec.element_bytes != 4) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor map: want elements of 1, 2 or 4 bytes, got %d", spec.element_bytes));
  }
  const int64_t row_bytes = int64_t{spec.box[0]} * spec.element_bytes;
  if (row_bytes != kSwizzleBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor map: want rows of a box of %d bytes, as the swizzle has, got %d",
                        kSwizzleBytes, row_bytes));
  }
  for (int i = 0; i < spec.rank; ++i) {
    if (spec.dims[i] < 1 || spec.box[i] < 1 || spec.box[i] > kMaxBoxDim) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor map: dimension %d: want at least 1 and a box of 1 to %d, got %d "
                          "and %d",
                          i, kMaxBoxDim, spec.dims[i], spec.box[i]));
    }
    if (i > 0 && spec.strides[i] % kGranule != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor map: dimension %d: want a stride of a multiple of 16 bytes, got %d", i,
          spec.strides[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
