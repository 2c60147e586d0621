// The module of the backend "cuda-emulated": the CUDA backend on an emulated device. It is for
// tests, and no package contains it.

#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "kernels/backend_module.h"
#include "kernels/build_id.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/faulty_device.h"

namespace quire::kernels::cuda::emulator {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options, DebugLog*) {
  if (options.device_ordinal != 0) {
    return absl::UnavailableError(
        absl::StrCat("cuda-emulated: want GPU ", options.device_ordinal, ", got 1 GPU"));
  }
  const char* const fault = std::getenv(kFaultVariable);
  auto device = std::make_unique<FaultyDevice>(fault == nullptr ? "" : fault);
  CudaBackendOptions of_backend = OptionsInUse(options, device->info());
  of_backend.linear_scratch_bytes = 1 << 20;
  if (options.cuda.shared_prefix) of_backend.shared_prefix_bytes = 1;
  return CreateCudaBackend(std::move(device), of_backend);
}

}  // namespace
}  // namespace quire::kernels::cuda::emulator

extern "C" const quire::kernels::BackendModule* quire_backend_module() {
  static constexpr quire::kernels::BackendModule kModule{
      .build_id = QUIRE_BUILD_ID, .create = quire::kernels::cuda::emulator::Create};
  return &kModule;
}
