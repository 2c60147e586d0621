#include "kernels/cuda/emulator/host_gemm.h"

#include <cstring>
#include <vector>

#include "kernels/quant/float16.h"

namespace quire::kernels::cuda::emulator {

namespace {

float Load(const void* data, int64_t i, DType type) {
  if (type == DType::kF32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == DType::kBF16 ? Bf16ToF32(bits) : F16ToF32(bits);
}

void Store(void* data, int64_t i, DType type, float value) {
  if (type == DType::kF32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] = type == DType::kBF16 ? F32ToBf16(value) : F32ToF16(value);
  }
}

}  // namespace

void HostGemm(const GemmArgs& args) {
  // Copies args.b as float32 and transposed, so that the innermost loop runs along n and
  // vectorizes.
  std::vector<float> b(static_cast<size_t>(args.k * args.n));
  for (int64_t n = 0; n < args.n; ++n) {
    for (int64_t k = 0; k < args.k; ++k) {
      b[static_cast<size_t>(k * args.n + n)] = Load(args.b, n * args.ldb + k, args.type);
    }
  }
  std::vector<float> sums(static_cast<size_t>(args.n));
  for (int64_t m = 0; m < args.m; ++m) {
    for (int64_t n = 0; n < args.n; ++n) {
      sums[static_cast<size_t>(n)] =
          args.accumulate ? Load(args.d, m * args.ldd + n, args.output_type) : 0.0f;
    }
    for (int64_t k = 0; k < args.k; ++k) {
      const float a = Load(args.a, m * args.lda + k, args.type);
      const float* row = &b[static_cast<size_t>(k * args.n)];
      for (int64_t n = 0; n < args.n; ++n) sums[static_cast<size_t>(n)] += a * row[n];
    }
    for (int64_t n = 0; n < args.n; ++n) {
      Store(args.d, m * args.ldd + n, args.output_type, sums[static_cast<size_t>(n)]);
    }
  }
}

}  // namespace quire::kernels::cuda::emulator
