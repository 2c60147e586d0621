#pragma once

// A TensorMap describes a tensor for TMA loads. Device::MakeTensorMap makes it on the host, and a
// kernel receives it in its parameters.

#include <array>
#include <cstdint>

#include "absl/status/status.h"

namespace quire::kernels::cuda {

// Has the size of CUtensorMap and at least the same alignment. Only the driver, or the emulator,
// knows the content.
struct alignas(128) TensorMap {
  unsigned char opaque[128] = {};
};

// Lists dimensions from the innermost to the outermost. The innermost dimension is contiguous. One
// load moves a box of the tensor, with the 128-byte swizzle: in shared memory, bits 4..6 of an
// address are xored with bits 7..9. A row of the box is as wide as the swizzle. CUDA does not say
// where narrower rows would be in shared memory.
struct TensorMapSpec {
  static constexpr int kMaxRank = 5;

  const void* data = nullptr;
  int element_bytes = 2;
  int rank = 0;
  std::array<int64_t, kMaxRank> dims{};
  std::array<int64_t, kMaxRank> strides{};  // bytes; strides[0] is element_bytes
  std::array<int32_t, kMaxRank> box{};      // elements; box[0] has 128 bytes
};

// Returns InvalidArgument for a tensor that TMA cannot load. MakeTensorMap of every device calls
// this function first.
absl::Status Validate(const TensorMapSpec& spec);

}  // namespace quire::kernels::cuda
