#pragma once

// The product of tokens and a weight in whatever form its parts are stored.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/cuda_weight.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fixed_rows_gemm.h"

namespace quire::kernels::cuda {

// Up to this number of tokens, packed parts of a weight are multiplied as they are
// (packed_gemm.cuh). For more tokens, their rows are written to scratch memory in the dtype of the
// weight, as many at a time as fit, and multiplied by Device::Gemm. With GemmRows::kFixed, packed
// parts are multiplied as they are for any number of tokens, kMostPackedTokens at a time.
inline constexpr int64_t kMostPackedTokens = 16;

// Device memory of a product, at a multiple of 256 bytes. With GemmRows::kAny it is for dequantised
// rows, and for tokens in e4m3 if a part has scales. It must have room for one row at least if the
// weight is packed and there are more than kMostPackedTokens tokens, and for one token at least if
// a part has scales. With GemmRows::kFixed it is for FixedRowsGemm, if any part is not
// packed.
struct ProductScratch {
  void* memory = nullptr;
  int64_t bytes = 0;
  GemmRows rows = GemmRows::kAny;
};

// Returns the bytes that ProductScratch needs with GemmRows::kFixed, if the rows of the product are
// `ldd` elements apart.
int64_t FixedRowsScratchBytes(const CudaWeight& weight, int64_t ldd);

// Enqueues the writing of rows of a packed weight to `params.out`, in `dtype`: f16 or bf16.
struct DequantizeWeightParams;
absl::Status DequantizeRows(Device& device, DType dtype, WeightType type,
                            const DequantizeWeightParams& params);

// Returns what WeightProduct refuses, so that a caller can find out before it enqueues work.
// `most_tokens` is the largest `m` that will be multiplied.
absl::Status CheckWeightProduct(const CudaWeight& weight, const GemmArgs& args, int64_t most_tokens,
                                const ProductScratch& scratch);

// Enqueues the product of args.a and `weight`, with the contract of Device::Gemm. The weight
// decides `b`, `n`, `k`, `ldb` and `type`, which are not read. If a part is packed or has scales,
// args.a and its rows must be at multiples of 16 bytes. A part with scales is multiplied in e4m3
// (fp8_product.h); not with GemmRows::kFixed.
absl::Status WeightProduct(Device& device, const CudaWeight& weight, GemmArgs args,
                           const ProductScratch& scratch);

}  // namespace quire::kernels::cuda
