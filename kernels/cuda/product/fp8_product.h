#pragma once

// Products of tokens and the parts of a weight in e4m3 (CudaWeightPart::scales) by cuBLASLt.
//
// The tokens are rounded to e4m3, to nearest even. Their scales are chosen for each product, so
// that the largest magnitude becomes 448: one for a token if the weight's rows have a scale each,
// and one for 128 columns of a token if its blocks do (DeepSeek-V3, arXiv:2412.19437). An element
// that is not finite makes each product NaN whose scale it decides.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/quantize_tokens.cuh"

namespace quire::kernels::cuda {

// Enqueues the rounding of tokens in f16 or bf16.
absl::Status QuantizeTokens(Device& device, DType dtype, GemmScales scales,
                            const QuantizeTokensParams& params);

// Returns how many tokens of a product fit into scratch memory, as codes with their scales, or 0 if
// it is too small. If blocks have scales, it is a multiple of kScaledGemmTokens, and the products
// of so many rows of `ldd` float32 fit, too.
int64_t QuantizedTokensIn(int64_t scratch_bytes, const CudaWeight& weight, int64_t ldd);

// Enqueues the product with all parts that have scales. `args` is as for WeightProduct
// (weight_product.h), with `k` and `type` set. `scratch` is at a multiple of 256 bytes, and
// QuantizedTokensIn is not 0. The tokens of a product of more are taken in turns.
absl::Status Fp8Product(Device& device, const CudaWeight& weight, const GemmArgs& args,
                        void* scratch, int64_t scratch_bytes);

}  // namespace quire::kernels::cuda
