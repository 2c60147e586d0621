#pragma once

// The CUDA backend: the ops of ops.h on one Device, a GPU or the emulated one.
//
// Attention runs on tensor cores if query and cache are both f16 or both bf16 and a kernel exists
// for their head_dim (paged_attention.h); otherwise the plain kernel runs (AttentionReference).
// Weights of every type are dequantised when they are prepared, to the dtype of activations.
// Ops are enqueued; nothing that depends on the content of device memory is checked before it runs.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "kernels/backend.h"
#include "kernels/cuda/device.h"

namespace quire::kernels::cuda {

struct CudaBackendOptions {
  DType activation_dtype = DType::kF32;  // f32 | f16 | bf16
  // Scratch for the sums of a linear with an epilogue, and for a mixture of experts; it limits the
  // tokens that are processed at once.
  int64_t linear_scratch_bytes = int64_t{32} << 20;
  // Attention is cut at fixed keys: its bits do not depend on the batch (attention_plan.h).
  bool deterministic = false;
};

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::unique_ptr<Device> device,
                                                           const CudaBackendOptions& options = {});

}  // namespace quire::kernels::cuda
