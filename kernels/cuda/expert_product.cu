#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/expert_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/packed_grouped_gemm.cuh"
#include "kernels/cuda/packed_launch.h"

namespace quire::kernels::cuda {
namespace {

// Returns the most tiles of `tile_rows` rows that groups can have. A group has at most one tile
// that is not full.
unsigned MostTiles(const GroupedGemmParams& params, int64_t num_rows, int64_t tile_rows) {
  return static_cast<unsigned>(
      std::min(num_rows, num_rows / tile_rows + int64_t{params.num_groups}));
}

unsigned Blocks(int64_t cols, int64_t cols_per_block) {
  return static_cast<unsigned>(base::CeilDiv(cols, cols_per_block));
}

template <typename T, int kRowTiles, bool kGated>
absl::Status LaunchTiles(Device& device, const GroupedGemmParams& params, int64_t num_rows) {
  return Launch(
      device,
      {.grid = {Blocks(params.cols, GemmCols(kGated)), MostTiles(params, num_rows, 16 * kRowTiles)},
       .block = {kGemmThreads},
       .shared_bytes = GemmSharedBytes(kRowTiles)},
      &GroupedGemmKernel<T, kRowTiles, kGated>, params);
}

// `many`: true if groups have more than 16 rows on average.
template <typename T, bool kGated>
absl::Status GroupedGemm(Device& device, const GroupedGemmParams& params, int64_t num_rows,
                         bool many) {
  if constexpr (sizeof(T) == 2) {
    const bool vectors = reinterpret_cast<uintptr_t>(params.input) % 16 == 0;
    if (params.depth % 8 == 0 && vectors) {
      return many ? LaunchTiles<T, 4, kGated>(device, params, num_rows)
                  : LaunchTiles<T, 1, kGated>(device, params, num_rows);
    }
  }
  return Launch(device,
                {.grid = {Blocks(params.cols, kPlainGemmThreads), static_cast<unsigned>(num_rows)},
                 .block = {kPlainGemmThreads}},
                &GroupedGemmPlainKernel<T, kGated>, params);
}

template <typename T, WeightType kType, int kTokenTiles, bool kGated>
absl::Status LaunchPacked(Device& device, const GroupedGemmParams& params, int64_t num_rows) {
  using Shape = PackedGemmShape<kType, kTokenTiles>;
  return Launch(device,
                {.grid = {Blocks(params.cols, Shape::kRows / (kGated ? 2 : 1)),
                          MostTiles(params, num_rows, Shape::kTokens)},
                 .block = {Shape::kThreads},
                 .shared_bytes = Shape::kSharedBytes},
                &PackedGroupedGemmKernel<T, kType, kTokenTiles, kGated>, params);
}

template <typename T, WeightType kType, bool kGated>
absl::Status PackedGroupedGemm(Device& device, const GroupedGemmParams& params, int64_t num_rows) {
  // A tile of 16 rows pays for 16. One of 8 reads the matrix twice for a group of more than 8 rows.
  return num_rows <= int64_t{4} * params.num_groups
             ? LaunchPacked<T, kType, 1, kGated>(device, params, num_rows)
             : LaunchPacked<T, kType, 2, kGated>(device, params, num_rows);
}

}  // namespace

absl::Status ExpertProduct(Device& device, const CudaWeight& weight, GroupedGemmParams params,
                           int64_t num_rows, bool gated) {
  const CudaWeightPart& part = weight.parts()[0];
  params.weight = weight.DataOf(part);
  params.out_cols = params.cols;
  if (part.packed) {
    return WithPackedTypes(weight.dtype(), *part.packed, [&](auto element, auto constant) {
      using T = decltype(element);
      constexpr WeightType kType = decltype(constant)::value;
      return gated ? PackedGroupedGemm<T, kType, true>(device, params, num_rows)
                   : PackedGroupedGemm<T, kType, false>(device, params, num_rows);
    });
  }
  const bool many = num_rows > int64_t{16} * params.num_groups;
  return WithElementType(weight.dtype(), [&](auto element) {
    using T = decltype(element);
    return gated ? GroupedGemm<T, true>(device, params, num_rows, many)
                 : GroupedGemm<T, false>(device, params, num_rows, many);
  });
}

}  // namespace quire::kernels::cuda
