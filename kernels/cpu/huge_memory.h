#pragma once

// Allocates anonymous memory, in huge pages if Linux grants them. Each step reads the weights and
// the KV cache from end to end. One thread reads 13 GB/s from pages of 4 KiB, and 18 to 29 GB/s
// from huge pages of 2 MiB (docs/design.md).

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/device_buffer.h"

namespace quire::kernels::cpu {

// Returns zero-filled memory, aligned to at least 64 bytes. Returns ResourceExhausted when no
// memory is left.
absl::StatusOr<DeviceBuffer> AllocateHuge(int64_t bytes);

// Returns the bytes that may still be allocated: the smaller of the machine's available memory and
// the rest of the cgroup's limit. Returns 0 when unknown.
int64_t AvailableMemory();

}  // namespace quire::kernels::cpu
