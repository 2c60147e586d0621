#pragma once

// Allocates anonymous memory, in huge pages if Linux grants them. Each step reads the weights and
// the KV cache from end to end. With 4 KiB pages one thread would lose a third of the bandwidth.

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
