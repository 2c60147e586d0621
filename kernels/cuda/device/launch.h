#pragma once

// Launch is the only way to launch a kernel, on a GPU and on the emulated device:
//
//   __global__ void __launch_bounds__(128) ScaleKernel(const __grid_constant__ ScaleParams params);
//
//   absl::Status Scale(Device& device, const ScaleParams& params) {
//     return Launch(device, {.grid = {params.num_rows}, .block = {128}}, &ScaleKernel, params);
//   }
//
// A kernel takes one struct by value. It must not use static __shared__ variables, cooperative
// groups or CUB, and it must not wait for another block. The emulator supports none of these.

#include <span>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/device/clear_padding.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launch_config.h"

namespace quire::kernels::cuda {

template <typename Params>
absl::Status Launch(Device& device, const LaunchConfig& config, void (*kernel)(Params),
                    const std::type_identity_t<Params>& params) {
  static_assert(std::is_trivially_copyable_v<Params>);
  Params copy = params;
  ClearPadding(copy);
  KernelLaunch launch;
  launch.config = config;
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.params = std::as_bytes(std::span(&copy, 1));
#if !defined(__CUDACC__)
  launch.call = [](const void* k, const void* p) {
    reinterpret_cast<void (*)(Params)>(const_cast<void*>(k))(*static_cast<const Params*>(p));
  };
#endif
  return device.LaunchKernel(launch);
}

// Device::BlocksPerSm of `kernel`.
template <typename Params>
absl::StatusOr<int> BlocksPerSm(Device& device, const LaunchConfig& config,
                                void (*kernel)(Params)) {
  return device.BlocksPerSm(reinterpret_cast<const void*>(kernel), config);
}

}  // namespace quire::kernels::cuda
