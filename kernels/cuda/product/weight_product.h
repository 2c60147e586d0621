#pragma once

// The product of tokens and a weight in whatever form its parts are stored.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/fixed_rows_gemm.h"

namespace quire::kernels::cuda {

// Device memory of a product, at a multiple of 256 bytes. With GemmRows::kAny it is for dequantised
// rows, which must have room for one row at least if a part is dequantised (packed_choice.h), and
// for tokens in e4m3, with room for one at least, if a part has scales. With GemmRows::kFixed it is
// for FixedRowsGemm, if any part is not packed. In both it is also for the parts of packed products
// (packed_batch_gemm.cuh), if it has room for them.
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
absl::Status CheckWeightProduct(const Device& device, const CudaWeight& weight,
                                const GemmArgs& args, int64_t most_tokens,
                                const ProductScratch& scratch);

// Enqueues the product of args.a and `weight`, with the contract of Device::Gemm. The weight
// decides `b`, `n`, `k`, `ldb` and `type`, which are not read. If a part is packed or has scales,
// args.a and its rows must be at multiples of 16 bytes.
//
// A packed part is multiplied as it is by up to MostPackedTokens (packed_choice.h), and with
// GemmRows::kFixed by any number of tokens, kPackedBatch at a time. A token then has the same bits
// beside any others. For more tokens, rows of the part are written to the scratch memory in the
// dtype of the weight, as many at a time as fit, and multiplied by Device::Gemm.
//
// A part with scales is multiplied in e4m3 (fp8_product.h); not with GemmRows::kFixed.
absl::Status WeightProduct(Device& device, const CudaWeight& weight, GemmArgs args,
                           const ProductScratch& scratch);

}  // namespace quire::kernels::cuda
