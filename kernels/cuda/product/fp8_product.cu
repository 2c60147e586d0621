#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/gemm_shape.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/product/fixed_rows_gemm.h"
#include "kernels/cuda/product/fp8_product.h"

namespace quire::kernels::cuda {
namespace {

// Enqueues the products of tokens, which `args` has in e4m3, with the parts of args.scales. If
// there are fewer tokens than args.m, their products take the way through `padded`.
absl::Status Multiply(Device& device, const CudaWeight& weight, GemmArgs args, int64_t num_tokens,
                      char* padded) {
  auto* const out = static_cast<char*>(args.d);
  for (const CudaWeightPart& part : weight.parts()) {
    if (part.scales != args.scales) continue;
    args.n = part.num_rows;
    args.b = weight.DataOf(part);
    args.ldb = args.k;
    args.b_scales = weight.ScalesOf(part);
    args.d = out + part.first_row * SizeOf(args.output_type);
    RETURN_IF_ERROR(num_tokens == args.m ? device.Gemm(args)
                                         : PaddedGemm(device, args, num_tokens, padded));
  }
  return absl::OkStatus();
}

bool HasPart(const CudaWeight& weight, GemmScales scales) {
  return std::ranges::find(weight.parts(), scales, &CudaWeightPart::scales) != weight.parts().end();
}

// Returns where the padded products begin in scratch memory: its end without scales of blocks, and
// at no positive number if it is too small.
int64_t PaddedOffset(int64_t scratch_bytes, const CudaWeight& weight, int64_t ldd) {
  if (!HasPart(weight, GemmScales::kBlocks)) return scratch_bytes;
  const int64_t bytes = kScaledGemmTokens * ldd * SizeOf(DType::kF32);
  return (scratch_bytes - bytes) / kScratchAlignment * kScratchAlignment;
}

template <typename T>
absl::Status Quantize(Device& device, GemmScales scales, const QuantizeTokensParams& params) {
  const Dim3 grid = {static_cast<unsigned>(params.num_tokens)};
  const Dim3 block = {RowThreads(params.cols, kQuantizeCols)};
  if (scales == GemmScales::kBlocks) {
    return Launch(device, {.grid = grid, .block = block}, &QuantizeBlocksKernel<T>, params);
  }
  return Launch(device, {.grid = grid, .block = block, .shared_bytes = kBlockSumBytes},
                &QuantizeRowsKernel<T>, params);
}

}  // namespace

absl::Status QuantizeTokens(Device& device, DType dtype, GemmScales scales,
                            const QuantizeTokensParams& params) {
  return dtype == DType::kF16 ? Quantize<F16>(device, scales, params)
                              : Quantize<Bf16>(device, scales, params);
}

int64_t QuantizedTokensIn(int64_t scratch_bytes, const CudaWeight& weight, int64_t ldd) {
  const int64_t bytes = PaddedOffset(scratch_bytes, weight, ldd), cols = weight.cols();
  // The scales of blocks take the most: a float32 for 128 columns, one at least.
  const int64_t token_bytes = cols + base::CeilDiv(cols, kScaledGemmBlock) * SizeOf(DType::kF32);
  const int64_t tokens = std::max<int64_t>(0, bytes - kScratchAlignment) / token_bytes;
  return HasPart(weight, GemmScales::kBlocks) ? tokens - tokens % kScaledGemmTokens : tokens;
}

absl::Status Fp8Product(Device& device, const CudaWeight& weight, const GemmArgs& args,
                        void* scratch, int64_t scratch_bytes) {
  const int64_t tokens_at_once = QuantizedTokensIn(scratch_bytes, weight, args.ldd);
  char* const padded = static_cast<char*>(scratch) + PaddedOffset(scratch_bytes, weight, args.ldd);
  for (const GemmScales scales : {GemmScales::kRows, GemmScales::kBlocks}) {
    if (!HasPart(weight, scales)) continue;
    const int64_t unit = scales == GemmScales::kBlocks ? kScaledGemmTokens : 1;
    for (int64_t first = 0, count; first < args.m; first += count) {
      // Whole units, and then what is left as one that is padded.
      count = std::min(tokens_at_once, args.m - first);
      if (count > unit) count -= count % unit;
      GemmArgs slice = args;
      slice.m = base::RoundUp(count, unit);
      const int64_t code_bytes = base::RoundUp(slice.m * args.k, kScratchAlignment);
      const QuantizeTokensParams params = {
          .codes = static_cast<E4M3*>(scratch),
          .scales = reinterpret_cast<float*>(static_cast<char*>(scratch) + code_bytes),
          .input = static_cast<const char*>(args.a) + first * args.lda * SizeOf(args.type),
          .cols = args.k,
          .stride = args.lda,
          .num_tokens = count,
          .scale_stride = slice.m};
      RETURN_IF_ERROR(QuantizeTokens(device, args.type, scales, params));
      slice.a = params.codes;
      slice.lda = args.k;
      slice.type = DType::kF8E4M3;
      slice.scales = scales;
      slice.a_scales = params.scales;
      slice.d = static_cast<char*>(args.d) + first * args.ldd * SizeOf(args.output_type);
      RETURN_IF_ERROR(Multiply(device, weight, slice, count, padded));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
