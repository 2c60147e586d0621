#include "kernels/cuda/gemm_shape.h"

#include <algorithm>
#include <bit>

#include "base/math.h"

namespace quire::kernels::cuda {

int64_t RowBucket(int64_t m) {
  if (m <= 4) return m;
  // Let p be the smallest power of two that is at least m, so p / 2 < m <= p. With a step of p / 8,
  // there are four buckets in this range.
  const int64_t step = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(m))) / 8;
  return base::RoundUp(m, step);
}

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
          .accumulate = args.accumulate};
}

}  // namespace quire::kernels::cuda
