#pragma once

// The description of a tensor for TMA loads: made on the host by Device::MakeTensorMap, passed to a
// kernel in its parameters.

#include <array>
#include <cstdint>

#include "absl/status/status.h"

namespace quire::kernels::cuda {

// Has the size and alignment of CUDA's own map, whose content only the driver knows.
struct alignas(128) TensorMap {
  unsigned char opaque[128] = {};
};

// Dimensions innermost first; the innermost is contiguous. One load moves a box of it, with the
// 128-byte swizzle: in shared memory bits 4..6 of an address are xored with bits 7..9.
struct TensorMapSpec {
  static constexpr int kMaxRank = 5;

  const void* data = nullptr;
  int element_bytes = 2;
  int rank = 0;
  std::array<int64_t, kMaxRank> dims{};
  std::array<int64_t, kMaxRank> strides{};  // bytes; strides[0] is element_bytes
  std::array<int32_t, kMaxRank> box{};      // elements; box[0] at most 128 bytes
};

// InvalidArgument for a tensor that TMA cannot load. Every device calls it first.
absl::Status Validate(const TensorMapSpec& spec);

}  // namespace quire::kernels::cuda
