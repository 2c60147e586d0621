#pragma once

// Items of AttnKernel (paged_attention.cuh) with more than 64 rows. A warp has two tiles of 16
// rows.
//
// A warp multiplies each fragment of K and V that it loads from shared memory with both of its row
// tiles. So an item of 128 rows reads K and V half as often as two items of 64 rows, from L2 and
// from shared memory. The output of 32 rows takes half of the registers. So Q stays in shared
// memory, in the place of the third stage of tiles. At more than 64 dimensions, a tile has 32 keys,
// and there are twice as many stages. Nothing that can be computed again stays in a register.
//
// A cache of E4M3 is widened once for all warps (WideTiles), where the warps of smaller items each
// widen what they multiply.

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/attention/attn_keys.cuh"
#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/attention/attn_rows.cuh"
#include "kernels/cuda/attention/attn_shape.cuh"
#include "kernels/cuda/attention/attn_softmax.cuh"
#include "kernels/cuda/attention/attn_tiles.cuh"
#include "kernels/cuda/attention/fp8_tiles.cuh"
#include "kernels/cuda/device/primitives.cuh"

namespace quire::kernels::cuda {

// The sizes of a wide item. kKeyTiles are those of a tile, of which a warp takes all keys. Stages
// hold elements of 16 bits. With a cache of 16 bits, the memory is that of AttnShape.
template <int kHeadDimension, typename Cache>
struct WideAttnShape : AttnShape<kHeadDimension, 4> {
  using Base = AttnShape<kHeadDimension, 4>;
  static constexpr int kWarpRowTiles = 2;
  static constexpr int kRows = 16 * 4 * kWarpRowTiles;
  static constexpr int kKeys = kHeadDimension <= 64 ? 64 : 32;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kTileElements = kKeys * kHeadDimension;
  static constexpr bool kWidens = sizeof(Cache) == 1;
  static constexpr int kStages = kWidens ? 2 : 2 * Base::kKeys / kKeys;
  static constexpr int kStagesAndQueryBytes = (kStages * 2 * kKeys + kRows) * kHeadDimension * 2;
  static constexpr int kSharedBytes =
      kWidens ? kStagesAndQueryBytes + kStages * 2 * kTileElements : Base::kSharedBytes;
  static_assert(kStagesAndQueryBytes <= kSharedBytes);
};

// The tiles of an item, from the newest on.
template <typename T, typename Cache, typename Shape>
class WideTiles {
 public:
  __device__ __forceinline__ WideTiles(const AttnParams<T>& p, const AttentionItem& item,
                                       const ItemTiles<false>& tiles, int thread)
      : loader_(p, item, thread), tiles_(tiles) {}

  // Starts to copy the first tiles.
  __device__ __forceinline__ void Start() const {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      const int tile = tiles_.count() - 1 - i;
      if (tile >= 0) loader_.Load(tiles_.FirstKey(tile), i, /*wanted=*/true);
      CpAsyncCommit();
    }
  }

  // Returns the keys of the i-th tile, which its values follow, and starts to copy another. No
  // thread may access the tile before it any more. All threads of the block must call this
  // function.
  __device__ __forceinline__ const T* Next(int i) {
    CpAsyncWait<kStages - 2>();
    __syncthreads();
    const int next = i - (kStages - 1), free_stage = (stage_ == 0 ? kStages : stage_) - 1;
    loader_.Load(tiles_.FirstKey(std::max(next, 0)), free_stage, next >= 0);
    CpAsyncCommit();
    const T* const tile = StageOfTiles<T, Shape>(stage_);
    stage_ = stage_ + 1 < kStages ? stage_ + 1 : 0;
    return tile;
  }

 private:
  static constexpr int kStages = Shape::kStages;

  const TileLoader<T, Shape> loader_;
  const ItemTiles<false>& tiles_;
  int stage_ = 0;
};

// The same with a cache of E4M3. A tile's codes are copied, and widened into its stage while the
// tile before it is multiplied.
template <typename T, typename Shape>
class WideTiles<T, E4M3, Shape> {
 public:
  __device__ __forceinline__ WideTiles(const AttnParams<T>& p, const AttentionItem& item,
                                       const ItemTiles<false>& tiles, int thread)
      : codes_(p, item, thread,
               reinterpret_cast<uint4*>(DynamicShared<std::byte>() + Shape::kStagesAndQueryBytes)),
        tiles_(tiles) {}

  __device__ __forceinline__ void Start() const {
    const int last = tiles_.count() - 1;
    Copy(last, 0);
    Copy(last - 1, 1);
    Widen(last, 0);
  }
  __device__ __forceinline__ const T* Next(int i) {
    __syncthreads();
    const T* const tile = StageOfTiles<T, Shape>(stage_);
    stage_ = 1 - stage_;
    Widen(i - 1, stage_);
    return tile;
  }

 private:
  static_assert(Shape::kStages == 2);

  // Starts to copy the codes of the i-th tile, if there is one.
  __device__ __forceinline__ void Copy(int i, int stage) const {
    codes_.Copy(tiles_.FirstKey(std::max(i, 0)), stage, i >= 0);
  }

  // Widens the i-th tile into `stage`, and starts to copy the codes of the one after the next in
  // their place. If there is no i-th tile, what it leaves there is never read.
  __device__ __forceinline__ void Widen(int i, int stage) const {
    CpAsyncWait<1>();
    T* const tile = StageOfTiles<T, Shape>(stage);
    codes_.template Widen<T>(stage, [&](int part, int row, int offset, int chunk) {
      return tile + part * Shape::kTileElements + (row + offset) * Shape::kHeadDim +
             SwizzledChunk<Shape::kChunks>(row, chunk) * 8;
    });
    Copy(i - 2, stage);
  }

  using Codes = CodeTiles<Shape::kHeadDim, Shape::kKeys, /*kParts=*/2>;
  static_assert(Shape::kStagesAndQueryBytes + 2 * Codes::kSlotBytes == Shape::kSharedBytes);

  const Codes codes_;
  const ItemTiles<false>& tiles_;
  int stage_ = 0;
};

// Copies the queries of an item to shared memory, as a tile of kRows rows. Rows past the end of the
// item become zeros.
template <typename T, typename Shape>
__device__ __forceinline__ void LoadQueryTile(const AttnParams<T>& p, const AttentionItem& item,
                                              int thread, T* tile) {
  constexpr int kChunks = Shape::kChunks;
  const int64_t first_token = p.query_starts[item.seq];
  // Not unrolled: cp.async needs no more than one address at a time, and waits for none of them.
#pragma unroll 1
  for (int i = thread; i < Shape::kRows * kChunks; i += kAttnThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool valid = row < item.num_rows;
    const QueryAndHead of(p, item, item.first_row + (valid ? row : 0));
    const int64_t place = (first_token + of.query) * p.num_heads + of.head;
    CpAsync<16>(tile + row * Shape::kHeadDim + SwizzledChunk<kChunks>(row, chunk) * 8,
                p.query + place * Shape::kHeadDim + chunk * 8, valid);
  }
}

// Returns the element of a tile at which the lane's row of an ldmatrix of Q or V begins. It loads
// 16 rows and 16 columns, from column 16 * k on. Matrices 0 and 1 are the left 8 columns, 2 and 3
// the right ones. Q and V share the pattern, so that their addresses share registers.
template <typename Shape>
__device__ __forceinline__ int LaneElement(int lane, int k) {
  const int row = lane % 16;
  return row * Shape::kHeadDim + SwizzledChunk<Shape::kChunks>(row, k * 2 + lane / 16) * 8;
}

// Returns in `scores` the products of the warp's queries with the keys of `k_tile`. `q_tile` begins
// with the warp's first row.
template <typename T, typename Shape>
__device__ __forceinline__ void WideScores(const T* q_tile, const T* k_tile, int lane,
                                           float (&scores)[2][Shape::kKeyTiles][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int n = 0; n < Shape::kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[r][n][i] = 0.0f;
    }
  }
  const int row = lane % 8 + lane / 16 * 8;
  const T* const rows = k_tile + row * Shape::kHeadDim;
#pragma unroll
  for (int k = 0; k < Shape::kDepthSteps; ++k) {
    const T* const from = rows + SwizzledChunk<Shape::kChunks>(row, k * 2 + lane / 8 % 2) * 8;
    const int at = LaneElement<Shape>(lane, k);
    uint32_t q[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) LdMatrix(q[r], q_tile + r * 16 * Shape::kHeadDim + at);
#pragma unroll
    for (int n = 0; n < Shape::kKeyTiles; n += 2) {
      uint32_t b[4];
      LdMatrix(b, from + n * 8 * Shape::kHeadDim);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Mma<T>(scores[r][n], q[r], b[0], b[1]);
        Mma<T>(scores[r][n + 1], q[r], b[2], b[3]);
      }
    }
  }
}

// Adds to `out` the values of the same keys, multiplied by the weights, which are rounded to T
// first.
template <typename T, typename Shape>
__device__ __forceinline__ void AddWideValues(const float (&weights)[2][Shape::kKeyTiles][4],
                                              const T* v_tile, int lane,
                                              float (&out)[2][Shape::kProductTiles][4]) {
#pragma unroll
  for (int n = 0; n < Shape::kKeyTiles; n += 2) {
    uint32_t a[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&pair)[4] = weights[r][n + i / 2];
        a[r][i] = Pack2<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int c = 0; c < Shape::kProductTiles; c += 2) {
      uint32_t b[4];
      LdMatrixTransposed(b, v_tile + n * 8 * Shape::kHeadDim + LaneElement<Shape>(lane, c / 2));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Mma<T>(out[r][c], a[r], b[0], b[1]);
        Mma<T>(out[r][c + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// BiasAndMask for both row tiles. The first key that a row sees is computed anew for each tile with
// a mask, because registers are few.
template <typename T, int kKeyTiles>
__device__ __forceinline__ void BiasAndMaskBoth(const AttnParams<T>& p, const LaneRows (&rows)[2],
                                                int lane_key, bool masked,
                                                float (&scores)[2][kKeyTiles][4]) {
  const bool capped = p.soft_cap > 0.0f;
  if (capped) {
#pragma unroll
    for (int r = 0; r < 2; ++r) CapScores(p.scale, p.soft_cap, scores[r]);
  }
  const float scale = capped ? 1.0f : p.scale;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int distance[2] = {lane_key - rows[r].position[0], lane_key - rows[r].position[1]};
    ScaleAndBiasScores(scale, rows[r].slope, distance, scores[r]);
  }
  if (!masked) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    int first_seen[2], last_seen[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int position = rows[r].position[h];
      first_seen[h] = static_cast<int>(p.pattern.FirstKey(position)) - lane_key;
      last_seen[h] = position - lane_key;
    }
    MaskScores(first_seen, last_seen, scores[r]);
  }
}

// Processes an item of more than 64 rows. All threads of the block must call this function.
template <typename T, int kHeadDim, typename Cache>
__device__ __forceinline__ void AttendWideItem(const AttnParams<T>& p, int index) {
  const AttentionItem item = p.items[index];
  using Shape = WideAttnShape<kHeadDim, Cache>;
  constexpr int kKeys = Shape::kKeys;
  AttnPlace<Shape> at;
  at.row_warp = at.thread / 32 * Shape::kWarpRowTiles;  // of the first row tile
  at.key_warp = 0;
  const ItemTiles<false> tiles(p.tiles, item, kKeys);
  WideTiles<T, Cache, Shape> wide_tiles(p, item, tiles, at.thread);
  T* const q_tile = StageOfTiles<T, Shape>(Shape::kStages);
  LoadQueryTile<T, Shape>(p, item, at.thread, q_tile);
  wide_tiles.Start();

  const LaneRows rows[2] = {LaneRows(p, item, at.row()), LaneRows(p, item, at.row() + 16)};
  const SeenByAll seen_by_all(p, item);
  float out[2][Shape::kProductTiles][4] = {};
  OnlineSoftmax softmax[2];
  for (int i = tiles.count() - 1; i >= 0; --i) {
    const T* const k_tile = wide_tiles.Next(i);
    float scores[2][Shape::kKeyTiles][4];
    // Opaque, so that no register holds the places of a lane's fragments from one tile to the next.
    const int thread = Opaque(at.thread), lane = thread % 32;
    WideScores<T, Shape>(q_tile + thread / 32 * 32 * kHeadDim, k_tile, lane, scores);
    const int tile_begin = tiles.FirstKey(i);
    BiasAndMaskBoth(p, rows, tile_begin + at.column(), !seen_by_all.Contains(tile_begin, kKeys),
                    scores);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float rescale[2];
      softmax[r].Weigh(scores[r], rescale);
      Rescale(rescale, out[r]);
    }
    AddWideValues<T, Shape>(scores, k_tile + Shape::kTileElements, lane, out);
  }
  // After this barrier, the next item's queries and tiles are copied.
  __syncthreads();
  // The item is read again, so that no register holds it in the loop.
  const AttentionItem stored = p.items[index];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    softmax[r].SumOfLanes();
    if constexpr (Shape::kWidens) {
      const float factor[2] = {p.value_factor, p.value_factor};
      Rescale(factor, out[r]);
    }
    StoreRows(p, stored, at, softmax[r], out[r]);
    ++at.row_warp;
  }
}

}  // namespace quire::kernels::cuda
