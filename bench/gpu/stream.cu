#include <algorithm>

#include "bench/gpu/stream.cuh"
#include "bench/gpu/stream.h"
#include "kernels/cuda/device/launch.h"

namespace quire::bench {
namespace {

using kernels::DType;
using kernels::cuda::Device;

// Returns as many blocks as run concurrently, or fewer when there is less work.
unsigned GridFor(const Device& device, int64_t work_items) {
  const int64_t blocks = (work_items + kStreamThreads - 1) / kStreamThreads;
  return static_cast<unsigned>(
      std::clamp<int64_t>(blocks, 1, int64_t{kStreamBlocksPerSm} * device.info().num_sms));
}

template <typename T>
absl::Status Fill(Device& device, void* data, int64_t count, float amplitude, uint32_t seed) {
  return kernels::cuda::Launch(
      device, {.grid = {GridFor(device, count)}, .block = {kStreamThreads}}, &FillRandomKernel<T>,
      {static_cast<T*>(data), count, amplitude, seed});
}

}  // namespace

absl::Status FillRandom(Device& device, void* data, DType dtype, int64_t count, float amplitude,
                        uint32_t seed) {
  switch (dtype) {
    case DType::kF32:
      return Fill<float>(device, data, count, amplitude, seed);
    case DType::kF8E4M3:
      return Fill<E4M3>(device, data, count, amplitude, seed);
    default:
      return Fill<Bf16>(device, data, count, amplitude, seed);
  }
}

absl::Status ReadAll(Device& device, const void* data, int64_t bytes, void* sink) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(uint4));
  return kernels::cuda::Launch(
      device, {.grid = {GridFor(device, count / kReadsInFlight)}, .block = {kStreamThreads}},
      &ReadAllKernel, {static_cast<const uint4*>(data), count, static_cast<uint32_t*>(sink)});
}

}  // namespace quire::bench
