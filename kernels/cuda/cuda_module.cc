// The module of the backend "cuda": the CUDA backend on a GPU.

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "kernels/backend_module.h"
#include "kernels/build_id.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_device.h"

namespace quire::kernels::cuda {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CudaDevice::Create(options.device_ordinal));
  ASSIGN_OR_RETURN(const PrefillAttention attention, PrefillAttentionNamed(options.cuda_attention));
  const int64_t most_scratch_bytes = MostScratchBytes(device->info());
  return CreateCudaBackend(
      std::move(device),
      {.activation_dtype = options.activation_dtype,
       .most_scratch_bytes = most_scratch_bytes,
       .deterministic = options.deterministic,
       .prefill_attention = attention,
       .shared_prefix_bytes = options.cuda_shared_prefix ? kWorthwhileSharedBytes : 0,
       .fp8_products = options.cuda_fp8_products,
       .skips_far_keys = options.cuda_alibi_skip});
}

}  // namespace
}  // namespace quire::kernels::cuda

extern "C" const quire::kernels::BackendModule* quire_backend_module() {
  static constexpr quire::kernels::BackendModule kModule{.build_id = QUIRE_BUILD_ID,
                                                         .create = quire::kernels::cuda::Create};
  return &kModule;
}
