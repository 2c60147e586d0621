#pragma once

// Launches the kernels of sample.cuh. The C++ compiler compiles their caller (device_sampler.cc).

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/sample/sample_rows.h"

namespace quire::kernels::cuda {

struct SampleKernelParams {
  const float* logits = nullptr;  // [.., num_ids]
  const DeviceSampleRow* rows = nullptr;
  const int32_t* slots = nullptr;  // in `layout`
  const int32_t* drawn = nullptr;
  const uint32_t* reach = nullptr;  // sampling::ReachTable()
  const int32_t* holes = nullptr;   // ids without a piece, below num_drawable
  const int32_t* end_ids = nullptr;
  float* edited = nullptr;  // [grid, num_drawable], for logits that change
  DeviceSampleResult* results = nullptr;
  TokenLogprob* tops = nullptr;  // [rows, kMostTopLogprobs]: ids and their logits, in any order
  SlotLayout layout;
  int32_t num_ids = 0, num_rows = 0, num_drawable = 0, num_holes = 0, num_end_ids = 0;
};

// Enqueues the sampling of all rows, at most `grid_size` at a time, and then stores the drawn ids.
absl::Status LaunchSample(Device& device, const SampleKernelParams& params, int32_t* drawn,
                          int64_t grid_size);

}  // namespace quire::kernels::cuda
