#include "kernels/cuda/emulator/host_gemm.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cuda/device/gemm_shape.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/float8.h"
#include "kernels/row_bucket.h"

namespace quire::kernels::cuda::emulator {

namespace {

// Writes elements [first, first + out.size()) of `data` to `out`.
void LoadRow(const void* data, int64_t first, DType type, std::span<float> out) {
  const auto load = [&](auto* elements, auto to_float) {
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = to_float(elements[first + static_cast<int64_t>(i)]);
  };
  switch (type) {
    case DType::kF32:
      return load(static_cast<const float*>(data), [](float x) { return x; });
    case DType::kBF16:
      return load(static_cast<const uint16_t*>(data), [](uint16_t x) { return Bf16ToF32(x); });
    case DType::kF16:
      return load(static_cast<const uint16_t*>(data), [](uint16_t x) { return F16ToF32(x); });
    default:
      return load(static_cast<const uint8_t*>(data), [](uint8_t x) { return E4M3ToF32(x); });
  }
}

// Writes to `addends` what is added to the sums of row m of d.
void LoadAddends(const GemmArgs& args, int64_t m, std::span<float> addends) {
  if (args.accumulate) return LoadRow(args.d, m * args.ldd, args.output_type, addends);
  std::ranges::fill(addends, 0.0f);
}

// Returns the column of `num_cols` at which sums begin. It depends on all that decides about the
// algorithm of cuBLASLt (gemm_shape.h), so that no test can rely on the bits of a product of
// another shape.
int64_t FirstColumn(const GemmArgs& args, int64_t num_cols) {
  if (num_cols == 0) return 0;
  const GemmShape shape = ShapeOf(args);
  uint64_t hash = 0;
  for (const int64_t value :
       {RowBucket(shape.m), shape.n, shape.k, shape.lda, shape.ldb, shape.ldd,
        int64_t{shape.a_alignment}, int64_t{shape.b_alignment}, int64_t{shape.d_alignment},
        static_cast<int64_t>(shape.output_type), int64_t{shape.accumulate}}) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return static_cast<int64_t>(hash % static_cast<uint64_t>(num_cols));
}

void Store(void* data, int64_t i, DType type, float value) {
  if (type == DType::kF32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] = type == DType::kBF16 ? F32ToBf16(value) : F32ToF16(value);
  }
}

// Returns the product of the scales of a and b for block `j` of the columns.
float ScaleOf(const GemmArgs& args, int64_t m, int64_t n, int64_t j) {
  if (args.scales == GemmScales::kRows) return args.a_scales[m] * args.b_scales[n];
  return args.a_scales[j * args.m + m] *
         args.b_scales[n / kScaledGemmBlock * BlockScaleStride(args.k) + j];
}

// Computes a product in e4m3. The sums of columns that share their scales come first.
void HostScaledGemm(const GemmArgs& args) {
  const int64_t block = args.scales == GemmScales::kRows ? args.k : kScaledGemmBlock;
  const int64_t begin = FirstColumn(args, block);
  std::vector<float> b(static_cast<size_t>(args.n * args.k)), a(static_cast<size_t>(args.k));
  for (int64_t n = 0; n < args.n; ++n) {
    LoadRow(args.b, n * args.ldb, args.type,
            std::span(b).subspan(static_cast<size_t>(n * args.k), a.size()));
  }
  std::vector<float> addends(static_cast<size_t>(args.n));
  for (int64_t m = 0; m < args.m; ++m) {
    LoadRow(args.a, m * args.lda, args.type, a);
    LoadAddends(args, m, addends);
    for (int64_t n = 0; n < args.n; ++n) {
      const float* const row = b.data() + n * args.k;
      float sum = 0.0f;
      for (int64_t first = 0; first < args.k; first += block) {
        float part = 0.0f;
        for (int64_t i = 0; i < block; ++i) {
          const int64_t k = first + (begin + i) % block;
          part += a[static_cast<size_t>(k)] * row[k];
        }
        sum += part * ScaleOf(args, m, n, first / block);
      }
      Store(args.d, m * args.ldd + n, args.output_type, sum + addends[static_cast<size_t>(n)]);
    }
  }
}

}  // namespace

void HostGemm(const GemmArgs& args) {
  if (args.type == DType::kF8E4M3) return HostScaledGemm(args);
  // Copies args.b as float32 and transposed, so that the innermost loop runs along n and
  // vectorizes.
  std::vector<float> b(static_cast<size_t>(args.k * args.n)), a(static_cast<size_t>(args.k));
  for (int64_t n = 0; n < args.n; ++n) {
    LoadRow(args.b, n * args.ldb, args.type, a);
    for (int64_t k = 0; k < args.k; ++k) {
      b[static_cast<size_t>(k * args.n + n)] = a[static_cast<size_t>(k)];
    }
  }
  const int64_t begin = FirstColumn(args, args.k);
  std::vector<float> sums(static_cast<size_t>(args.n)), addends(static_cast<size_t>(args.n));
  for (int64_t m = 0; m < args.m; ++m) {
    LoadRow(args.a, m * args.lda, args.type, a);
    LoadAddends(args, m, addends);
    std::ranges::fill(sums, 0.0f);
    for (int64_t i = 0; i < args.k; ++i) {
      const int64_t k = (begin + i) % args.k;
      const float of_a = a[static_cast<size_t>(k)];
      const float* row = &b[static_cast<size_t>(k * args.n)];
      for (int64_t n = 0; n < args.n; ++n) sums[static_cast<size_t>(n)] += of_a * row[n];
    }
    for (int64_t n = 0; n < args.n; ++n) {
      const auto i = static_cast<size_t>(n);
      Store(args.d, m * args.ldd + n, args.output_type, sums[i] + addends[i]);
    }
  }
}

}  // namespace quire::kernels::cuda::emulator
