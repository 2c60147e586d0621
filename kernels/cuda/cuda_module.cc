// The module of the backend "cuda": the CUDA backend on a GPU.

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "kernels/backend_module.h"
#include "kernels/build_id.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/cuda_device.h"

namespace quire::kernels::cuda {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options, DebugLog* log) {
  ASSIGN_OR_RETURN(
      std::unique_ptr<CudaDevice> device,
      CudaDevice::Create(options.device_ordinal,
                         {.gemm = {.cuts_depth = !options.deterministic, .log = log}}));
  const CudaBackendOptions of_backend = OptionsInUse(options, device->info());
  return CreateCudaBackend(std::move(device), of_backend);
}

}  // namespace
}  // namespace quire::kernels::cuda

extern "C" const quire::kernels::BackendModule* quire_backend_module() {
  static constexpr quire::kernels::BackendModule kModule{.build_id = QUIRE_BUILD_ID,
                                                         .create = quire::kernels::cuda::Create};
  return &kModule;
}
