// Registers the backend "cuda-emulated" in each program that links this file. It is the CUDA
// backend on an emulated device. This backend is for tests, and no package contains it.

#include <memory>

#include "kernels/backend_registry.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/emulated_device.h"

namespace quire::kernels::cuda::emulator {
namespace {

[[maybe_unused]] const bool is_registered = [] {
  RegisterBackend("cuda-emulated", [](const BackendOptions& options) {
    return CreateCudaBackend(std::make_unique<EmulatedDevice>(),
                             {.activation_dtype = options.activation_dtype,
                              .linear_scratch_bytes = 1 << 20,
                              .deterministic = true});
  });
  return true;
}();

}  // namespace
}  // namespace quire::kernels::cuda::emulator
