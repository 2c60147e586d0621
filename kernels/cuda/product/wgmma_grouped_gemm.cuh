#pragma once

// The products of grouped_gemm.cuh for groups of many rows, as an sm_90a GPU wants them: a
// warpgroup fetches, and two multiply with wgmma.
//
// A product has up to 192 rows and 256 rows of the weight, half of which each warpgroup multiplies.
// So the accumulators take three quarters of the registers of a multiprocessor. What it reads from
// L2 for a multiplication limits the kernel, and tiles of 128 x 256 read a sixth more. Rows are
// multiplied in blocks of 64, and a product leaves out the blocks that it does not have.
//
// Each block of the grid computes one product after another, and the warpgroup that fetches runs
// ahead, into the next product too. TMA fetches the weight. Rows are those of tokens that chose the
// group, anywhere in the input, which TMA of sm_90 cannot gather. So cp.async fetches them.

#include <algorithm>

#include "kernels/cuda/device/staged_tiles.cuh"
#include "kernels/cuda/product/grouped_gemm.cuh"
#include "kernels/cuda/product/wgmma_grouped_gemm.h"

namespace quire::kernels::cuda {

struct WgmmaGemmShape {
  static constexpr int kRowBlocks = 3;  // of 64 rows
  static constexpr int kRows = 64 * kRowBlocks;
  static constexpr int kOwnWeightRows = 128;  // of each of the two warpgroups that multiply
  static constexpr int kWeightRows = 2 * kOwnWeightRows;
  static constexpr int kBoxRows = kOwnWeightRows / 2;  // that one TMA load fetches
  static constexpr int kDepth = 64;                    // of a stage: 128 bytes of each row
  static constexpr int kStages = 4;
  static constexpr int kLate = 2;  // rows are complete this many stages after they were asked for
  static constexpr int kConsumers = 256;
  static constexpr int kThreads = kConsumers + 128;
  static constexpr int kColTiles = kOwnWeightRows / 8;
  // Returns the number of output columns of a product. If gated, the first half of the weight rows
  // of a warpgroup are gate rows, and the others up rows.
  static constexpr int Cols(bool gated) { return gated ? kWeightRows / 2 : kWeightRows; }
};

// The shared memory of a block. Each stage has a barrier that completes when it is full, and one
// that completes when all consumer warps have read it.
struct WgmmaGemmShared {
  unsigned char rows[WgmmaGemmShape::kStages][WgmmaGemmShape::kRows * 128];
  unsigned char weights[WgmmaGemmShape::kStages][WgmmaGemmShape::kWeightRows * 128];
  uint64_t full[WgmmaGemmShape::kStages], empty[WgmmaGemmShape::kStages];
};

inline constexpr int kWgmmaGemmSharedBytes = sizeof(WgmmaGemmShared);

using GemmStage = TileStage<WgmmaGemmShape::kStages>;

// Calls for_product(tile, first column) for each product of the block. All lanes of a warp must
// call this function.
template <bool kGated, typename ForProduct>
__device__ __forceinline__ void ForEachProduct(const GroupedGemmParams& p,
                                               const ForProduct& for_product) {
  using Shape = WgmmaGemmShape;
  const auto num_tiles =
      static_cast<unsigned>(CountGroupTiles(p.starts, p.num_groups, Shape::kRows));
  const auto num_col_blocks =
      static_cast<unsigned>((p.cols + Shape::Cols(kGated) - 1) / Shape::Cols(kGated));
  for (unsigned i = blockIdx.x; i < num_tiles * num_col_blocks; i += gridDim.x) {
    const ProductPlace place(i, num_tiles, num_col_blocks);
    for_product(FindGroupTile(p.starts, p.num_groups, Shape::kRows, place.tile),
                place.col_block * Shape::Cols(kGated));
  }
}

// The third warpgroup's work. All its threads must call these functions.
template <typename T, bool kGated>
class ProductFetcher {
 public:
  __device__ __forceinline__ ProductFetcher(const WgmmaGemmParams& params, WgmmaGemmShared& shared)
      : params_(params),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) % 128 / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // Fetches the stages of a product, each as soon as it is empty.
  __device__ __forceinline__ void Fetch(const GroupTile& tile, int first_col) {
    const GroupedGemmParams& p = params_.gemm;
    // A thread fetches the same chunk of every kRowStep-th row.
    const int load_row = warp_ * (32 / kChunks) + lane_ / kChunks, chunk = lane_ % kChunks;
    const auto* const input = static_cast<const T*>(p.input) + chunk * 8;
    const auto chunks_of_row = static_cast<uint32_t>(p.depth / 8);
    uint32_t first_chunks[Shape::kRows / kRowStep];
#pragma unroll
    for (int i = 0; i < Shape::kRows / kRowStep; ++i) {
      const int32_t row = tile.row + i * kRowStep + load_row;
      first_chunks[i] = kNoRow;
      if (row >= tile.end) continue;
      const int32_t from = p.choices == nullptr ? row : p.choices[row] / p.rows_per_input;
      first_chunks[i] = static_cast<uint32_t>(from) * chunks_of_row;
    }
    for (int at = 0; at < p.depth; at += Shape::kDepth) {
      // A fresh stage counts as just emptied.
      MbarrierWait(&shared_.empty[stage_.index], stage_.parity ^ 1);
      if (warp_ == 0 && lane_ == 0) FetchWeights(tile.group, first_col, at);
      const bool in_row = at + chunk * 8 < p.depth;
#pragma unroll
      for (int i = 0; i < Shape::kRows / kRowStep; ++i) {
        const bool valid = in_row && first_chunks[i] != kNoRow;
        CpAsync<16>(
            TileChunk(shared_.rows[stage_.index], Shape::kRows, i * kRowStep + load_row, chunk),
            valid ? input + uint64_t{first_chunks[i]} * 8 + at : p.input, valid);
      }
      CpAsyncCommit();
      stage_.Advance();
      if (num_late_ < Shape::kLate) {
        ++num_late_;
        continue;
      }
      CpAsyncWait<Shape::kLate>();
      HandOver();
    }
  }

  // Hands over the last stages of the block.
  __device__ __forceinline__ void Finish() {
    CpAsyncWait<0>();
    for (; num_late_ > 0; --num_late_) HandOver();
  }

 private:
  using Shape = WgmmaGemmShape;
  static constexpr int kChunks = Shape::kDepth / 8;  // of 16 bytes, of a row of a stage
  static constexpr int kRowStep = 128 / kChunks;     // rows that the warpgroup fetches at once
  static constexpr uint32_t kNoRow = 0xffffffffu;

  // The first two boxes are of the first warpgroup that multiplies, the others of the second.
  __device__ __forceinline__ void FetchWeights(int group, int first_col, int at) const {
    uint64_t* const full = &shared_.full[stage_.index];
    MbarrierArriveExpect(full, Shape::kWeightRows * 128);
#pragma unroll
    for (int box = 0; box < Shape::kWeightRows / Shape::kBoxRows; ++box) {
      const int matrix = kGated ? group * 2 + box % 2 : group;
      const int cols_before = (kGated ? box / 2 : box) * Shape::kBoxRows;
      TmaLoad(shared_.weights[stage_.index] + box * Shape::kBoxRows * 128, params_.weight, full,
              {at, first_col + cols_before, matrix});
    }
  }

  // Tells the consumers that the rows of the oldest stage in flight are there.
  __device__ __forceinline__ void HandOver() {
    FenceAsyncProxy();
    __syncwarp();
    if (lane_ == 0) MbarrierArrive(&shared_.full[handed_over_.index]);
    handed_over_.Advance();
  }

  const WgmmaGemmParams& params_;
  WgmmaGemmShared& shared_;
  const int warp_, lane_;
  GemmStage stage_, handed_over_;
  int num_late_ = 0;  // stages that were asked for, and not handed over
};

// Sets `c` to the products of kBlocks blocks of 64 rows and the weight rows of a warpgroup. All
// threads of the warpgroup must call this function.
template <typename T, int kBlocks>
__device__ __forceinline__ void MultiplyRows(
    int64_t depth, WgmmaGemmShared& shared, GemmStage& stage,
    float (&c)[WgmmaGemmShape::kRowBlocks][WgmmaGemmShape::kColTiles][4]) {
  using Shape = WgmmaGemmShape;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own_weights = static_cast<int>(threadIdx.x) / 128 * Shape::kOwnWeightRows * 128;
#pragma unroll
  for (int i = 0; i < kBlocks * Shape::kColTiles * 4; ++i) {
    c[i / (Shape::kColTiles * 4)][i / 4 % Shape::kColTiles][i % 4] = 0.0f;
  }
  GemmStage before;
  for (int at = 0; at < depth; at += Shape::kDepth) {
    MbarrierWait(&shared.full[stage.index], stage.parity);
    const unsigned char* const rows = shared.rows[stage.index];
    const unsigned char* const weights = shared.weights[stage.index] + own_weights;
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < Shape::kDepth / 16; ++k) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        WgmmaShared<T>(c[block], WgmmaDescriptor(rows + block * 64 * 128 + k * 32, 16, 1024),
                       WgmmaDescriptor(weights + k * 32, 16, 1024), /*accumulate=*/true);
      }
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (at > 0 && lane == 0) MbarrierArrive(&shared.empty[before.index]);
    before = stage;
    stage.Advance();
  }
  WgmmaWait<0>();
  if (lane == 0) MbarrierArrive(&shared.empty[before.index]);
}

// Computes one product, and stores its result. All threads of both warpgroups that multiply must
// call this function.
template <typename T, bool kGated>
__device__ __forceinline__ void ComputeProduct(const GroupedGemmParams& p, const GroupTile& tile,
                                               int first_col, WgmmaGemmShared& shared,
                                               GemmStage& stage) {
  using Shape = WgmmaGemmShape;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  float c[Shape::kRowBlocks][Shape::kColTiles][4];
  const int num_rows = tile.end - tile.row;
  if (num_rows > 128) {
    MultiplyRows<T, 3>(p.depth, shared, stage, c);
  } else if (num_rows > 64) {
    MultiplyRows<T, 2>(p.depth, shared, stage, c);
  } else {
    MultiplyRows<T, 1>(p.depth, shared, stage, c);
  }

  constexpr int kOutTiles = Shape::kColTiles / (kGated ? 2 : 1);
  first_col += thread / 128 * kOutTiles * 8 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2 * Shape::kRowBlocks; ++i) {
    const int32_t row = tile.row + i / 2 * 64 + thread / 32 % 4 * 16 + i % 2 * 8 + lane / 4;
    if (row >= tile.end) break;
    const float input_weight = kGated ? InputWeight(p, row) : 1.0f;
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) {
      // The number of columns is a multiple of 8, so both are there or neither.
      const int64_t col = first_col + n * 8;
      if (col >= p.cols) break;
      float values[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float value = c[i / 2][n][i % 2 * 2 + j];
        if constexpr (kGated) {
          values[j] = FinishGated(p, tile.group, col + j, input_weight, value,
                                  c[i / 2][n + kOutTiles][i % 2 * 2 + j]);
        } else {
          values[j] = FinishProduct(p, tile.group, col + j, value);
        }
      }
      const int64_t at = row * p.out_cols + col;
      if constexpr (kGated) {
        StoreVector(static_cast<T*>(p.out) + at, Pack2<T>(values[0], values[1]));
      } else {
        StoreVector(static_cast<float*>(p.out) + at, make_float2(values[0], values[1]));
      }
    }
  }
}

// Grid: as many blocks as run at once, or fewer.
template <typename T, bool kGated>
__global__ void __launch_bounds__(WgmmaGemmShape::kThreads, 1)
    WgmmaGroupedGemmKernel(const __grid_constant__ WgmmaGemmParams params) {
  using Shape = WgmmaGemmShape;
  const GroupedGemmParams& p = params.gemm;
  WgmmaGemmShared& shared = *DynamicShared<WgmmaGemmShared>();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
#pragma unroll
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      MbarrierInit(&shared.full[stage], 1 + 128 / 32);
      MbarrierInit(&shared.empty[stage], Shape::kConsumers / 32);
    }
    FenceMbarrierInit();
  }
  __syncthreads();
  if (thread >= Shape::kConsumers) {
    ShrinkRegisters<56>();
    ProductFetcher<T, kGated> fetcher(params, shared);
    ForEachProduct<kGated>(
        p, [&](const GroupTile& tile, int first_col) { fetcher.Fetch(tile, first_col); });
    fetcher.Finish();
  } else {
    GrowRegisters<224>();
    GemmStage stage;
    ForEachProduct<kGated>(p, [&](const GroupTile& tile, int first_col) {
      ComputeProduct<T, kGated>(p, tile, first_col, shared, stage);
    });
  }
}

}  // namespace quire::kernels::cuda
