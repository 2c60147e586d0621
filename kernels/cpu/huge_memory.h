#pragma once

// Anonymous memory in huge pages where the kernel grants them: weights and the KV cache are read
// end to end each step, and 4 KiB pages cost a third of the bandwidth on one thread.

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/device_buffer.h"

namespace quire::kernels::cpu {

// Zero-filled, aligned to 64 bytes at least. ResourceExhausted when there is none.
absl::StatusOr<DeviceBuffer> AllocateHuge(int64_t bytes);

// What may still be allocated: the least of the machine's available memory and what the cgroup's
// limit leaves. 0 when unknown.
int64_t AvailableMemory();

}  // namespace quire::kernels::cpu
