#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/fp8_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_launch.h"

namespace quire::kernels::cuda {
namespace {

constexpr int64_t kAlignment = 256;  // of the scales in scratch memory

// Enqueues the products of tokens, which `args` has in e4m3, with the parts of args.scales.
absl::Status Multiply(Device& device, const CudaWeight& weight, GemmArgs args) {
  auto* const out = static_cast<char*>(args.d);
  for (const CudaWeightPart& part : weight.parts()) {
    if (part.scales != args.scales) continue;
    args.n = part.num_rows;
    args.b = weight.DataOf(part);
    args.ldb = args.k;
    args.b_scales = weight.ScalesOf(part);
    args.d = out + part.first_row * SizeOf(args.output_type);
    RETURN_IF_ERROR(device.Gemm(args));
  }
  return absl::OkStatus();
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

int64_t QuantizedTokensIn(int64_t scratch_bytes, int64_t cols) {
  // The scales of blocks take the most: a float32 for 128 columns, one at least.
  const int64_t token_bytes = cols + base::CeilDiv(cols, kScaledGemmBlock) * SizeOf(DType::kF32);
  return std::max<int64_t>(0, scratch_bytes - kAlignment) / token_bytes;
}

absl::Status Fp8Product(Device& device, const CudaWeight& weight, const GemmArgs& args,
                        void* scratch, int64_t scratch_bytes) {
  const int64_t tokens_at_once = QuantizedTokensIn(scratch_bytes, args.k);
  for (const GemmScales scales : {GemmScales::kRows, GemmScales::kBlocks}) {
    if (std::ranges::find(weight.parts(), scales, &CudaWeightPart::scales) ==
        weight.parts().end()) {
      continue;
    }
    for (int64_t first = 0; first < args.m; first += tokens_at_once) {
      GemmArgs slice = args;
      slice.m = std::min(tokens_at_once, args.m - first);
      const int64_t code_bytes = base::RoundUp(slice.m * args.k, kAlignment);
      const QuantizeTokensParams params = {
          .codes = static_cast<E4M3*>(scratch),
          .scales = reinterpret_cast<float*>(static_cast<char*>(scratch) + code_bytes),
          .input = static_cast<const char*>(args.a) + first * args.lda * SizeOf(args.type),
          .cols = args.k,
          .stride = args.lda,
          .num_tokens = slice.m};
      RETURN_IF_ERROR(QuantizeTokens(device, args.type, scales, params));
      slice.a = params.codes;
      slice.lda = args.k;
      slice.type = DType::kF8E4M3;
      slice.scales = scales;
      slice.a_scales = params.scales;
      slice.d = static_cast<char*>(args.d) + first * args.ldd * SizeOf(args.output_type);
      RETURN_IF_ERROR(Multiply(device, weight, slice));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
