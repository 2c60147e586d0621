#pragma once

// Creates backends by name. The CPU backend is a part of every program. Other backends are in
// modules (backend_module.h).

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/backend.h"

namespace quire::kernels {

// The largest n of "cuda:n".
inline constexpr int kMaxDeviceOrdinal = 63;

struct BackendOptions {
  // auto | cpu | cuda[:n] | cuda-emulated. auto: cuda if its module is installed and finds a GPU
  // that it can use, otherwise cpu. n: the GPU, as the driver counts them. cuda-emulated: for
  // tests; no package has its module.
  std::string name = "auto";
  std::string cpu_isa = "auto";  // auto | portable | avx2 | avx512 | amx
  // The kernel of attention for chunks of prompts on CUDA: auto | mma | wgmma. auto: mma, until a
  // GPU has run wgmma. wgmma needs a GPU of compute capability 9.0.
  std::string cuda_attention = "auto";
  // The kernel of the experts of many tokens on CUDA, in the same way.
  std::string cuda_experts = "auto";
  // true: on CUDA, decodes that share many keys read them once
  // (kernels/cuda/attention/shared_units.h).
  bool cuda_shared_prefix = false;
  // true: on CUDA, products with weights in e4m3 round the activations to e4m3, too
  // (kernels/cuda/product/fp8_product.h). Needs a GPU of compute capability 9.0.
  bool cuda_fp8_products = false;
  // true: on CUDA, attention with ALiBi skips distant keys that provably weigh nothing
  // (kernels/cuda/attention/attn_horizon.cuh). Only for models with ALiBi.
  bool cuda_alibi_skip = false;
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
