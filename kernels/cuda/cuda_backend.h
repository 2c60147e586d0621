#pragma once

// The CUDA backend: the ops of ops.h on one Device, a GPU or the emulated one.
//
// Attention runs on tensor cores (paged_attention.h) if these three conditions hold: queries are
// f16 or bf16, and the cache is of the same dtype or fp8_e4m3; keys and values are equally long,
// and a kernel exists for their head_dim, the pattern and the block_size; the ALiBi bias is not
// rounded. Otherwise the plain kernel (AttentionReference) runs.
// CudaBackendOptions::prefill_attention chooses between two kernels for chunks of prompts on tensor
// cores, and expert_products between two for the experts of many tokens.
//
// With f16 or bf16 activations, PrepareWeight keeps quantised weights packed (packed_weight.h).
// PrepareMoeWeight does so if all parts have one type and whole pairs of groups (CanPackExperts).
// With CudaBackendOptions::fp8_products, PrepareWeight keeps those of e4m3 in e4m3, if their shape
// and their scales allow products in e4m3 (fp8_weight.h), and if the device has algorithms for them
// (fp8_support.h).
// Other weights are converted to the dtype of activations (weight_upload.h).
// Ops are enqueued. The host does not check the content of device memory before an op runs.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "kernels/backend.h"
#include "kernels/backend_registry.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/matrix_instruction.h"

namespace quire::kernels::cuda {

struct CudaBackendOptions {
  DType activation_dtype = DType::kF32;  // f32 | f16 | bf16
  // The bytes of scratch memory. A linear with an epilogue stores its sums there. A mixture of
  // experts stores its routing and products there. The size limits how many tokens are processed at
  // once, and each time the weights are read, and those that are packed are expanded. With gate and
  // up of 14336 rows each, as in an 8B Llama, 256 MiB hold 2340 tokens, whose tiles occupy 132
  // multiprocessors to 98 %. Rehearse enlarges it for all tokens of the largest step, up to
  // most_scratch_bytes, or never where that is 0.
  int64_t linear_scratch_bytes = int64_t{256} << 20;
  int64_t most_scratch_bytes = 0;
  int32_t pipeline_depth = 1;  // pipeline_depth and records: see BackendInfo
  bool records = true;
  // If true, the bits of a request do not depend on the other requests, nor on the chunks of its
  // prompt: attention is cut at fixed positions (attention_plan.h), and products have a fixed
  // number of rows (fixed_rows_gemm.h). Not with kWgmma.
  bool deterministic = false;
  // kWgmma is not the default of either, because no GPU has run it yet.
  MatrixInstruction prefill_attention = MatrixInstruction::kMma;
  MatrixInstruction expert_products = MatrixInstruction::kMma;
  // Decodes read keys that they share once (shared_units.h) in steps in which a layer reads at
  // least this many bytes less. 0: never, because no GPU has run it yet. Not with `deterministic`.
  int64_t shared_prefix_bytes = 0;
  // Weights in e4m3 stay so, and tokens are rounded to e4m3 for their products (fp8_product.h).
  // Off, because no GPU has run it yet. With compute capability 9.0 and f16 or bf16, and not with
  // `deterministic`.
  bool fp8_products = false;
  // Attention with ALiBi slopes skips keys that provably weigh nothing (attn_horizon.cuh), on
  // tensor cores but not with kWgmma, if the cache has key_norms. Off, because no GPU has run it
  // yet. Not with `deterministic`, because the norms depend on other requests.
  bool skips_far_keys = false;
};

// The value of shared_prefix_bytes with CudaExperiments::shared_prefix. A step with shared keys
// has a larger merge in each layer. An H200 reads 8 MiB in 2 us, which is an estimate of what that
// costs; no GPU has measured it.
inline constexpr int64_t kWorthwhileSharedBytes = int64_t{8} << 20;

// Returns the value of most_scratch_bytes for a device in use: a sixty-fourth of its memory. Of
// 141 GB, that is enough for the 8192 tokens of an 8B model's step, packed or not.
inline int64_t MostScratchBytes(const DeviceInfo& device) { return device.memory_bytes / 64; }

// Returns the options for a device in use.
CudaBackendOptions OptionsInUse(const BackendOptions& options, const DeviceInfo& device);

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::unique_ptr<Device> device,
                                                           const CudaBackendOptions& options = {});

}  // namespace quire::kernels::cuda
