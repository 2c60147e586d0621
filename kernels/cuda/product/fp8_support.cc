#include "kernels/cuda/product/fp8_support.h"

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/gemm_shape.h"
#include "kernels/row_bucket.h"

namespace quire::kernels::cuda {
namespace {

constexpr int64_t kLeastAlignment = 16;  // of outputs: an algorithm for it suits any other

// Enqueues a product of each bucket of tokens up to `most_tokens`. `args` has all but m.
absl::Status EnqueueEveryBucket(Device& device, GemmArgs args, int64_t most_tokens) {
  const int64_t unit = args.scales == GemmScales::kBlocks ? kScaledGemmTokens : 1;
  for (args.m = unit; args.m <= most_tokens; args.m = base::RoundUp(RowBucket(args.m + 1), unit)) {
    RETURN_IF_ERROR(device.Gemm(args));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFp8Support(Device& device, const CudaWeight& weight,
                             const DeviceBuffer& scratch) {
  const int64_t cols = weight.cols(), row_bytes = weight.rows() * SizeOf(DType::kF32);
  const int64_t scale_bytes = base::CeilDiv(cols, kScaledGemmBlock) * SizeOf(DType::kF32);
  const int64_t most_tokens =
      (scratch.bytes() - 3 * kScratchAlignment) / (row_bytes + cols + scale_bytes);
  char* const out = static_cast<char*>(scratch.data()) + kLeastAlignment;
  char* const codes = out - kLeastAlignment +
                      base::RoundUp(kLeastAlignment + most_tokens * row_bytes, kScratchAlignment);
  char* const scales = codes + base::RoundUp(most_tokens * cols, kScratchAlignment);
  const auto enqueue = [&]() -> absl::Status {
    for (const CudaWeightPart& part : weight.parts()) {
      if (part.scales == GemmScales::kNone) continue;
      for (const DType output_type : {weight.dtype(), DType::kF32}) {
        for (const bool accumulate : {false, true}) {
          const GemmArgs args = {.d = out,
                                 .a = codes,
                                 .b = weight.DataOf(part),
                                 .n = part.num_rows,
                                 .k = cols,
                                 .lda = cols,
                                 .ldb = cols,
                                 .ldd = weight.rows(),
                                 .type = DType::kF8E4M3,
                                 .output_type = output_type,
                                 .accumulate = accumulate,
                                 .scales = part.scales,
                                 .a_scales = reinterpret_cast<const float*>(scales),
                                 .b_scales = weight.ScalesOf(part)};
          RETURN_IF_ERROR(EnqueueEveryBucket(device, args, most_tokens));
        }
      }
    }
    return absl::OkStatus();
  };
  return device.Record(enqueue).status();
}

}  // namespace quire::kernels::cuda
