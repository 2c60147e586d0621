#pragma once

// Two kernels of the benchmark itself. One fills memory with random numbers, and one reads memory
// as fast as possible.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/dtype.h"

namespace quire::bench {

// Enqueues a kernel that fills bf16, f32 or fp8_e4m3 `data` with uniform numbers between -amplitude
// and amplitude. Each number depends only on `seed` and on its index.
absl::Status FillRandom(kernels::cuda::Device& device, void* data, kernels::DType dtype,
                        int64_t count, float amplitude, uint32_t seed);

// Enqueues a kernel that reads `bytes`, a multiple of 16, once. `sink` is 4 bytes of device memory
// that may be overwritten.
absl::Status ReadAll(kernels::cuda::Device& device, const void* data, int64_t bytes, void* sink);

}  // namespace quire::bench
