#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/dequantize_weight.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/packed_gemm.cuh"
#include "kernels/cuda/packed_launch.h"
#include "kernels/cuda/weight_product.h"

namespace quire::kernels::cuda {
namespace {

template <typename T, WeightType kType, int kTokenTiles>
absl::Status LaunchPacked(Device& device, const PackedGemmParams& params) {
  using Shape = PackedGemmShape<kType, kTokenTiles>;
  return Launch(device,
                {.grid = {static_cast<unsigned>(base::CeilDiv(params.rows, int64_t{Shape::kRows}))},
                 .block = {Shape::kThreads},
                 .shared_bytes = Shape::kSharedBytes},
                &PackedGemmKernel<T, kType, kTokenTiles>, params);
}

// Enqueues the product with packed rows at `data`.
absl::Status PackedGemm(Device& device, WeightType type, const uint8_t* data,
                        const GemmArgs& args) {
  const PackedGemmParams params = {.d = args.d,
                                   .a = args.a,
                                   .weight = data,
                                   .rows = args.n,
                                   .cols = args.k,
                                   .lda = args.lda,
                                   .ldd = args.ldd,
                                   .num_tokens = static_cast<int32_t>(args.m),
                                   .writes_floats = args.output_type == DType::kF32,
                                   .accumulate = args.accumulate};
  return WithPackedTypes(args.type, type, [&](auto element, auto constant) {
    using T = decltype(element);
    constexpr WeightType kType = decltype(constant)::value;
    return args.m <= 8 ? LaunchPacked<T, kType, 1>(device, params)
                       : LaunchPacked<T, kType, 2>(device, params);
  });
}

// Enqueues the product with packed rows at `data`, a number of dequantised rows at a time.
absl::Status DequantizedGemm(Device& device, WeightType type, const uint8_t* data, GemmArgs args,
                             const DequantizedRows& scratch) {
  const int64_t num_rows = args.n;
  int64_t rows_at_once = scratch.bytes / (args.k * SizeOf(args.type));
  if (rows_at_once > kGroupRows) rows_at_once -= rows_at_once % kGroupRows;
  auto* const out = static_cast<char*>(args.d);
  args.b = scratch.memory;
  args.ldb = args.k;
  for (int64_t first = 0; first < num_rows; first += rows_at_once) {
    args.n = std::min(rows_at_once, num_rows - first);
    const DequantizeWeightParams params = {.out = scratch.memory,
                                           .weight = data,
                                           .first_row = first,
                                           .num_rows = args.n,
                                           .cols = args.k};
    RETURN_IF_ERROR(DequantizeRows(device, args.type, type, params));
    args.d = out + first * SizeOf(args.output_type);
    RETURN_IF_ERROR(device.Gemm(args));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DequantizeRows(Device& device, DType dtype, WeightType type,
                            const DequantizeWeightParams& params) {
  const int64_t last_row = params.first_row + params.num_rows - 1;
  const int64_t groups = last_row / kGroupRows - params.first_row / kGroupRows + 1;
  const int64_t tiles = base::CeilDiv(params.cols, int64_t{kPackedTileCols * kDequantizeTiles});
  return WithPackedTypes(dtype, type, [&](auto element, auto constant) {
    return Launch(device,
                  {.grid = {static_cast<unsigned>(groups), static_cast<unsigned>(tiles)},
                   .block = {kDequantizeThreads}},
                  &DequantizeWeightKernel<decltype(element), decltype(constant)::value>, params);
  });
}

absl::Status CheckWeightProduct(const CudaWeight& weight, const GemmArgs& args, int64_t most_tokens,
                                const DequantizedRows& scratch) {
  if (!weight.is_packed()) return absl::OkStatus();
  const uintptr_t offset = reinterpret_cast<uintptr_t>(args.a) % 16;
  if (offset != 0) {
    return WantGot("input", "memory at a multiple of 16 bytes", absl::StrCat(offset, " past one"));
  }
  const int64_t width = SizeOf(weight.dtype());
  if (most_tokens > kMostPackedTokens && scratch.bytes < weight.cols() * width) {
    return WantGot("weight", absl::StrCat("at most ", scratch.bytes / width, " cols"),
                   absl::StrCat(weight.cols()));
  }
  return absl::OkStatus();
}

absl::Status WeightProduct(Device& device, const CudaWeight& weight, GemmArgs args,
                           const DequantizedRows& scratch) {
  RETURN_IF_ERROR(CheckWeightProduct(weight, args, args.m, scratch));
  auto* const out = static_cast<char*>(args.d);
  args.k = weight.cols();
  args.type = weight.dtype();
  for (const CudaWeightPart& part : weight.parts()) {
    const uint8_t* const data = weight.DataOf(part);
    args.n = part.num_rows;
    args.d = out + part.first_row * SizeOf(args.output_type);
    if (!part.packed) {
      args.b = data;
      args.ldb = args.k;
      RETURN_IF_ERROR(device.Gemm(args));
    } else if (args.m <= kMostPackedTokens) {
      RETURN_IF_ERROR(PackedGemm(device, *part.packed, data, args));
    } else {
      RETURN_IF_ERROR(DequantizedGemm(device, *part.packed, data, args, scratch));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
