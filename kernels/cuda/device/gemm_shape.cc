#include "kernels/cuda/device/gemm_shape.h"

#include <algorithm>
#include <bit>

namespace quire::kernels::cuda {

uint32_t AlignmentOf(const void* data) {
  constexpr uint32_t kAllocation = 256, kVector = 16;
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % kAllocation == 0) return kAllocation;
  return std::min(kVector, uint32_t{1} << std::countr_zero(address));
}

GemmShape ShapeOf(const GemmArgs& args) {
  return {.m = args.m,
          .n = args.n,
          .k = args.k,
          .lda = args.lda,
          .ldb = args.ldb,
          .ldd = args.ldd,
          .a_alignment = AlignmentOf(args.a),
          .b_alignment = AlignmentOf(args.b),
          .d_alignment = AlignmentOf(args.d),
          .type = args.type,
          .output_type = args.output_type,
          .accumulate = args.accumulate,
          .scales = args.scales};
}

}  // namespace quire::kernels::cuda
