// A program that links this file has the backend "cuda-emulated": the CUDA backend on an emulated
// device. It is for tests, and no package has it.

#include <memory>

#include "kernels/backend_registry.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/emulated_device.h"

namespace quire::kernels::cuda::emulator {
namespace {

[[maybe_unused]] const bool is_registered = [] {
  RegisterBackend("cuda-emulated", [](const BackendOptions& options) {
    return CreateCudaBackend(std::make_unique<EmulatedDevice>(),
                             {.activation_dtype = options.activation_dtype, .deterministic = true});
  });
  return true;
}();

}  // namespace
}  // namespace quire::kernels::cuda::emulator
