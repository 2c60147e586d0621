#pragma once

// Creates backends by name. The CPU backend is a part of every program. Other backends are in
// modules (backend_module.h).

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "kernels/backend.h"

namespace quire::kernels {

// The largest n of "cuda:n".
inline constexpr int kMaxDeviceOrdinal = 63;

// Variants of CUDA kernels that no GPU has run yet. Each is off until it is asked for by name. With
// `deterministic` there is none, because the results depend on the step.
struct CudaExperiments {
  // Attention of prompts, and experts of many tokens, by wgmma. Need compute capability 9.0.
  bool wgmma_attention = false;
  bool wgmma_experts = false;
  // Decodes that share many keys read them once (kernels/cuda/attention/shared_units.h).
  bool shared_prefix = false;
  // Products with weights in e4m3 round the activations to e4m3, too
  // (kernels/cuda/product/fp8_product.h). Needs compute capability 9.0.
  bool fp8_products = false;
  // Attention with ALiBi skips distant keys that provably weigh nothing
  // (kernels/cuda/attention/attn_horizon.cuh).
  bool alibi_skip = false;

  bool operator==(const CudaExperiments&) const = default;
};

// Reads names of CudaExperiments' members with commas between them, such as
// "shared_prefix,alibi_skip". Returns InvalidArgument for another name.
absl::StatusOr<CudaExperiments> ReadCudaExperiments(std::string_view list);

struct BackendOptions {
  // auto | cpu | cuda[:n] | cuda-emulated. auto: cuda if its module is installed and finds a GPU
  // that it can use, otherwise cpu. n: the GPU, as the driver counts them. cuda-emulated: for
  // tests; no package has its module.
  std::string name = "auto";
  std::string cpu_isa = "auto";  // auto | portable | avx2 | avx512 | amx
  CudaExperiments cuda;
  // true: on CUDA, the bits of a request do not depend on other requests or on chunks of its
  // prompt. On the CPU they never do.
  bool deterministic = false;
  int num_threads = 0;  // 0: all physical cores that affinity and cgroup quota allow
  // true: weights are copied to the layout of the kernels. false: weights stay mapped in the layout
  // of the file. Both give results with the same bits.
  bool pack_weights = true;
  DType activation_dtype = DType::kF32;  // f32 | f16 | bf16; the CPU backend always uses f32
  int device_ordinal = 0;                // CreateBackend sets it: the n of `name`
};

// Creates the backend that `options` describe. For "auto", logs one line that names the backend and
// the reason, at the debug level if there is no module. Returns an error that says what to change:
// InvalidArgument for a name or an option that is not one, otherwise that of OpenBackendModule or
// of the device.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options);

}  // namespace quire::kernels
