#pragma once

// Memory that grows to the largest size that was needed.

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"

#include "base/status_macros.h"
#include "kernels/cuda/device/device.h"

namespace quire::kernels::cuda {

// Makes `buffer` hold at least `bytes`, without its content, by Device::Allocate or
// Device::AllocateHost. Returns true if it allocated memory. Enqueued work may still use the old
// memory, so this function waits for that work before it frees the memory. The size at least
// doubles, so this is rare.
inline absl::StatusOr<bool> GrowBuffer(Device& device,
                                       absl::StatusOr<DeviceBuffer> (Device::*allocate)(int64_t),
                                       int64_t bytes, DeviceBuffer& buffer) {
  if (buffer.bytes() >= bytes) return false;
  if (buffer.bytes() > 0) RETURN_IF_ERROR(device.Synchronize());
  ASSIGN_OR_RETURN(buffer, (device.*allocate)(std::max(bytes, 2 * buffer.bytes())));
  return true;
}

}  // namespace quire::kernels::cuda
