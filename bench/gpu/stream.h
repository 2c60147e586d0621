#pragma once

// Plain kernels of the benchmark itself: random numbers, and reading memory as fast as it goes.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/device.h"
#include "kernels/dtype.h"

namespace quire::bench {

// bf16 or f32, uniform in (-amplitude, amplitude); the same numbers for the same seed. Enqueued.
absl::Status FillRandom(kernels::cuda::Device& device, void* data, kernels::DType dtype,
                        int64_t count, float amplitude, uint32_t seed);

// Reads `bytes`, a multiple of 16, once. `sink` is 4 bytes of the device that nobody needs.
// Enqueued.
absl::Status ReadAll(kernels::cuda::Device& device, const void* data, int64_t bytes, void* sink);

}  // namespace quire::bench
