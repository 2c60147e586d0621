#pragma once

// Counts of what a device was asked to do. Tests and metrics show by them which path ran.

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire::kernels {

enum class DeviceCount : uint8_t {
  kTensorCoreAttention,  // attention of one layer in one step, on tensor cores
  kPlainAttention,       // the same by a plain kernel
  kRecordings,
  kReplays,
  kUploads,  // copies from the host to the device
  kUploadedBytes,
  kAllocations,       // of memory of the device, and of pinned memory of the host
  kSynchronizations,  // waits for all enqueued work
  kSampledRows,  // rows of logits from which the device drew a token, or took log-probabilities
};

inline constexpr size_t kNumDeviceCounts = 9;

using DeviceCounts = std::array<int64_t, kNumDeviceCounts>;  // by DeviceCount

}  // namespace quire::kernels
