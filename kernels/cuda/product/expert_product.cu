#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/product/dequantize_weight.cuh"
#include "kernels/cuda/product/expert_product.h"
#include "kernels/cuda/product/packed_grouped_gemm.cuh"
#include "kernels/cuda/product/packed_launch.h"
#include "kernels/cuda/product/wgmma_grouped_gemm.h"

namespace quire::kernels::cuda {
namespace {

unsigned Blocks(int64_t cols, int64_t cols_per_block) {
  return static_cast<unsigned>(base::CeilDiv(cols, cols_per_block));
}

using SmallTile = GroupedGemmShape<1, 32>;
using MediumTile = GroupedGemmShape<4, 32>;
using LargeTile = GroupedGemmShape<8, 32>;
using WideTile = GroupedGemmShape<8, 64>;

template <typename T, typename Shape, bool kGated>
absl::Status LaunchTiles(Device& device, const GroupedGemmParams& params, int64_t num_rows) {
  return Launch(device,
                {.grid = {Blocks(params.cols, Shape::Cols(kGated)),
                          static_cast<unsigned>(MostGroupTiles(params, num_rows, Shape::kRows))},
                 .block = {Shape::kThreads},
                 .shared_bytes = Shape::kSharedBytes},
                &GroupedGemmKernel<T, Shape::kRowTiles, Shape::kWarpWeightRows, kGated>, params);
}

// Groups have `rows_of_group` rows on average, more than 16.
template <typename T, bool kGated>
absl::Status LaunchManyRows(Device& device, const GroupedGemmParams& params, int64_t num_rows,
                            int64_t rows_of_group, MatrixInstruction instruction) {
  if (instruction == MatrixInstruction::kWgmma && rows_of_group >= kLeastWgmmaRows &&
      SuitsWgmma(params)) {
    return WgmmaGroupedGemm<T, kGated>(device, params, num_rows);
  }
  if (rows_of_group < LargeTile::kRows) {
    return LaunchTiles<T, MediumTile, kGated>(device, params, num_rows);
  }
  return device.info().shared_bytes_per_block >= WideTile::kSharedBytes
             ? LaunchTiles<T, WideTile, kGated>(device, params, num_rows)
             : LaunchTiles<T, LargeTile, kGated>(device, params, num_rows);
}

template <typename T, bool kGated>
absl::Status GroupedGemm(Device& device, const GroupedGemmParams& params, int64_t num_rows,
                         MatrixInstruction instruction) {
  if constexpr (sizeof(T) == 2) {
    const bool vectors = reinterpret_cast<uintptr_t>(params.input) % 16 == 0;
    if (params.depth % 8 == 0 && vectors) {
      if (num_rows <= int64_t{SmallTile::kRows} * params.num_groups) {
        return LaunchTiles<T, SmallTile, kGated>(device, params, num_rows);
      }
      return LaunchManyRows<T, kGated>(device, params, num_rows, num_rows / params.num_groups,
                                       instruction);
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
                          static_cast<unsigned>(MostGroupTiles(params, num_rows, Shape::kTokens))},
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

// Returns true if a packed weight is better expanded than read again for every 16 rows. Expanded
// rows are written once and, as far as the caches do not hold them, read once.
bool ExpandsWeight(WeightType type, const GroupedGemmParams& params, int64_t num_rows) {
  const int64_t packed_bytes = PackedGroupBytes(type, params.depth);
  const int64_t expanded_bytes = kGroupRows * params.depth * 2;
  const int64_t tiles = base::CeilDiv(num_rows, int64_t{16} * params.num_groups);
  return tiles * packed_bytes > packed_bytes + 2 * expanded_bytes;
}

// Returns how many columns of experts can be expanded at once.
int64_t ColsThatFit(const GroupedGemmParams& params, bool gated, const ProductScratch& scratch) {
  return scratch.bytes / ((gated ? 2 : 1) * params.depth * 2);
}

// Expands whole experts, several at once, or columns of one. In `all`, `weight` is packed.
template <typename T, bool kGated>
absl::Status ExpandedProduct(Device& device, DType dtype, WeightType type,
                             const GroupedGemmParams& all, int64_t num_rows,
                             const ProductScratch& scratch, MatrixInstruction instruction) {
  constexpr int64_t kMatrices = kGated ? 2 : 1;
  const int64_t fit = ColsThatFit(all, kGated, scratch);
  const int64_t experts_at_once = std::clamp<int64_t>(fit / all.cols, 1, all.num_groups);
  constexpr int64_t kTileCols = WideTile::Cols(kGated);
  const int64_t step = fit < kTileCols ? kGroupRows : kTileCols;
  const int64_t cols_at_once = std::min(all.cols, fit / step * step);
  GroupedGemmParams params = all;
  params.weight = scratch.memory;
  for (int64_t expert = 0; expert < all.num_groups; expert += experts_at_once) {
    params.num_groups = static_cast<int32_t>(std::min(experts_at_once, all.num_groups - expert));
    params.starts = all.starts + expert;
    for (int64_t col = 0; col < all.cols; col += cols_at_once) {
      params.cols = std::min(cols_at_once, all.cols - col);
      // Whole experts follow one another. Columns of one are in both of its matrices.
      const bool whole = params.cols == all.cols;
      const int64_t runs = whole ? 1 : kMatrices;
      for (int64_t run = 0; run < runs; ++run) {
        RETURN_IF_ERROR(DequantizeRows(
            device, dtype, type,
            {.out = static_cast<T*>(scratch.memory) + run * params.cols * params.depth,
             .weight = static_cast<const uint8_t*>(all.weight),
             .first_row = (expert * kMatrices + run) * all.cols + col,
             .num_rows = whole ? params.num_groups * kMatrices * all.cols : params.cols,
             .cols = params.depth}));
      }
      params.out = static_cast<char*>(all.out) + col * (kGated ? sizeof(T) : sizeof(float));
      if (all.bias != nullptr) params.bias = all.bias + expert * kMatrices * all.cols + col;
      RETURN_IF_ERROR((LaunchManyRows<T, kGated>(device, params, num_rows,
                                                 num_rows / all.num_groups, instruction)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExpertProduct(Device& device, const CudaWeight& weight, GroupedGemmParams params,
                           int64_t num_rows, bool gated, const ProductScratch& scratch,
                           MatrixInstruction instruction) {
  const CudaWeightPart& part = weight.parts()[0];
  params.weight = weight.DataOf(part);
  params.out_cols = params.cols;
  if (part.packed) {
    const bool expands = scratch.rows == GemmRows::kAny &&
                         ExpandsWeight(*part.packed, params, num_rows) &&
                         ColsThatFit(params, gated, scratch) >= kGroupRows;
    return WithPackedTypes(weight.dtype(), *part.packed, [&](auto element, auto constant) {
      using T = decltype(element);
      constexpr WeightType kType = decltype(constant)::value;
      if (expands) {
        return gated ? ExpandedProduct<T, true>(device, weight.dtype(), kType, params, num_rows,
                                                scratch, instruction)
                     : ExpandedProduct<T, false>(device, weight.dtype(), kType, params, num_rows,
                                                 scratch, instruction);
      }
      return gated ? PackedGroupedGemm<T, kType, true>(device, params, num_rows)
                   : PackedGroupedGemm<T, kType, false>(device, params, num_rows);
    });
  }
  return WithElementType(weight.dtype(), [&](auto element) {
    using T = decltype(element);
    return gated ? GroupedGemm<T, true>(device, params, num_rows, instruction)
                 : GroupedGemm<T, false>(device, params, num_rows, instruction);
  });
}

}  // namespace quire::kernels::cuda
