#pragma once

// Plans the attention of a decode step on the device, with the cuts that the host makes for other
// steps (attention_plan.h). So the host uploads no plan, and a recorded step can be replayed for
// any lengths.
//
// All units of one decoding sequence read the same tiles of keys. So the place of each unit in the
// list of all tiles follows from the prefix sums of the sequences' tiles, and each warp finds the
// pieces of its units by arithmetic alone.

#include <algorithm>

#include "kernels/cuda/attention/attention_items.h"
#include "kernels/cuda/device/rows.cuh"

namespace quire::kernels::cuda {

struct PlanDecodesParams {
  const int32_t* context_lens;  // [num_seqs]
  AttentionItem* items;
  int32_t* block_starts;   // [num_ranges + 1]
  AttentionMerge* merges;  // [units]; num_rows is 0 for a unit that is not cut
  AttentionQueue* queue;   // null: blocks draw no ranges
  AttentionPattern pattern;
  DecodeUnits units;
  int num_seqs, tile_keys, num_ranges;
  int fixed_split_tiles;  // from one cut to the next; not used for equal cuts
};

inline constexpr int kPlanThreads = 256;
inline constexpr int kPlanWarps = kPlanThreads / kWarpLanes;

// Returns the shared memory of a launch: prefix sums over the sequences, two more over the ranges
// of items or, with a fixed split, one more over the sequences, and one number for each
// warp.
constexpr int64_t PlanSharedBytes(int64_t num_seqs, int64_t num_ranges, bool fixed_split) {
  const int64_t numbers =
      num_seqs + 1 + (fixed_split ? num_seqs + 1 : 2 * (num_ranges + 1)) + kPlanWarps;
  return numbers * static_cast<int64_t>(sizeof(int64_t));
}

// Writes sums[i] = value(0) + ... + value(i - 1) for i = 0 .. n. All threads of the block call
// this.
template <typename Value>
__device__ __forceinline__ void PrefixSums(int64_t* sums, int n, int64_t* scratch, Value value) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes;
  const int run = base::CeilDiv(n, kPlanThreads);
  const int first = thread * run, end = std::min(first + run, n);
  int64_t own = 0;
  for (int i = first; i < end; ++i) own += value(i);
  int64_t sum = WarpPrefixSum(own);
  if (lane == kWarpLanes - 1) scratch[thread / kWarpLanes] = sum;
  __syncthreads();
  sum -= own;
  for (int warp = 0; warp < thread / kWarpLanes; ++warp) sum += scratch[warp];
  for (int i = first; i < end; ++i) {
    sums[i] = sum;
    sum += value(i);
  }
  if (thread == kPlanThreads - 1) sums[n] = sum;
  __syncthreads();  // after this barrier, `sums` may be read and `scratch` written
}

__device__ __forceinline__ DecodeTiles TilesOf(const PlanDecodesParams& p, int seq) {
  return TilesOfDecode(p.pattern, p.context_lens[seq], p.tile_keys);
}

// A place in the list of all tiles.
struct TilePlace {
  int seq;
  int unit;    // of the sequence
  int offset;  // in the unit, in tiles
};

// `sums` are the prefix sums of the sequences' tiles. `tile` must be less than their total.
__device__ __forceinline__ TilePlace PlaceOf(const PlanDecodesParams& p, const int64_t* sums,
                                             int64_t tile) {
  int seq = 0;
  for (int end = p.num_seqs; end - seq > 1;) {
    const int middle = (seq + end) / 2;
    (sums[middle] <= tile ? seq : end) = middle;
  }
  const auto within = static_cast<int>(tile - sums[seq]);
  const int count = TilesOf(p, seq).count;
  return {.seq = seq, .unit = within / count, .offset = within % count};
}

// How a unit is cut. Piece i has tiles [begin(i), begin(i + 1)) of the sequence's tiles.
struct Cuts {
  int num_pieces;
  int64_t item;     // of the first piece
  int64_t partial;  // partial row of the first piece; -1: a whole unit that is not merged
  int64_t first_cut, step;
  int count;  // tiles of the unit

  __device__ __forceinline__ int begin(int piece) const {
    if (piece == 0) return 0;
    return static_cast<int>(std::min<int64_t>(first_cut + (piece - 1) * step, count));
  }
};

// One warp writes the items and the merge of a unit.
__device__ __forceinline__ void WriteUnit(const PlanDecodesParams& p, int seq, int unit,
                                          const Cuts& cuts) {
  const DecodeTiles tiles = TilesOf(p, seq);
  const int chunks = p.units.chunks();
  const int kv_head = unit / chunks;
  const int first_row = unit % chunks * p.units.most_rows;
  const int num_rows = std::min(p.units.most_rows, p.units.group - first_row);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  for (int piece = lane; piece < cuts.num_pieces; piece += kWarpLanes) {
    const int begin = tiles.first + cuts.begin(piece), end = tiles.first + cuts.begin(piece + 1);
    p.items[cuts.item + piece] = {
        .seq = seq,
        .kv_head = kv_head,
        .first_row = first_row,
        .num_rows = num_rows,
        .key_begin = std::max(tiles.key_begin, begin * p.tile_keys),
        .key_end = std::min(tiles.position + 1, end * p.tile_keys),
        .first_position = tiles.position,
        .partial = cuts.partial >= 0 ? static_cast<int32_t>(cuts.partial + piece * num_rows) : -1};
  }
  if (lane > 0) return;
  AttentionMerge merge;
  if (cuts.partial >= 0) {
    merge = {.seq = seq,
             .kv_head = kv_head,
             .first_row = first_row,
             .num_rows = num_rows,
             .partial = static_cast<int32_t>(cuts.partial),
             .num_items = cuts.num_pieces};
  }
  p.merges[seq * p.units.per_seq() + unit] = merge;
}

// Calls write(seq, unit) for each unit of this warp.
template <typename Write>
__device__ __forceinline__ void ForEachUnit(const PlanDecodesParams& p, Write write) {
  const int per_seq = p.units.per_seq(), warps = static_cast<int>(gridDim.x) * kPlanWarps;
  const int first =
      static_cast<int>(blockIdx.x) * kPlanWarps + static_cast<int>(threadIdx.x) / kWarpLanes;
  for (int i = first; i < p.num_seqs * per_seq; i += warps) write(i / per_seq, i % per_seq);
}

// Calls write(range) for each range of items, and for the end of the last one.
template <typename Write>
__device__ __forceinline__ void ForEachRangeStart(const PlanDecodesParams& p, Write write) {
  const int threads = static_cast<int>(gridDim.x) * kPlanThreads;
  const int first = static_cast<int>(blockIdx.x * kPlanThreads + threadIdx.x);
  for (int range = first; range <= p.num_ranges; range += threads) write(range);
}

// Cuts the list of all tiles into equal ranges.
__device__ __forceinline__ void PlanEqualCuts(const PlanDecodesParams& p) {
  int64_t* const tile_sums = DynamicShared<int64_t>();
  int64_t* const cut_sums = tile_sums + p.num_seqs + 1;
  int64_t* const cut_unit_sums = cut_sums + p.num_ranges + 1;
  int64_t* const scratch = cut_unit_sums + p.num_ranges + 1;
  const int per_seq = p.units.per_seq();
  const auto count = [&](int seq) { return TilesOf(p, seq).count; };
  // Counts the sequences whose units have 1, 2, 3 and more tiles, with 16 bits for each number. The
  // longest of these units decides the shortest range.
  static_assert(kMinRangeTiles == 4);
  PrefixSums(tile_sums, p.num_seqs, scratch, [&](int seq) {
    return int64_t{1} << 16 * (std::min(count(seq), int{kMinRangeTiles}) - 1);
  });
  int shortest_range = kMinRangeTiles;
  while (tile_sums[p.num_seqs] >> 16 * (shortest_range - 1) == 0) --shortest_range;
  // PrefixSums has a barrier before it writes, so all threads have read tile_sums by then.
  PrefixSums(tile_sums, p.num_seqs, scratch,
             [&](int seq) { return int64_t{count(seq)} * per_seq; });
  const int64_t total = tile_sums[p.num_seqs];
  const int64_t range = std::max<int64_t>(base::CeilDiv(total, p.num_ranges), shortest_range);
  const auto num_ranges = static_cast<int>(base::CeilDiv(total, range));
  // Range i begins with a cut if it begins inside a unit.
  PrefixSums(cut_sums, num_ranges, scratch,
             [&](int i) { return PlaceOf(p, tile_sums, i * range).offset > 0 ? 1 : 0; });
  // The first cut of a unit adds a unit that is cut.
  PrefixSums(cut_unit_sums, num_ranges, scratch, [&](int i) {
    const int offset = PlaceOf(p, tile_sums, i * range).offset;
    return offset > 0 && offset <= range ? 1 : 0;
  });

  ForEachUnit(p, [&](int seq, int unit) {
    const int tiles = count(seq);
    const int64_t begin = tile_sums[seq] + int64_t{unit} * tiles;
    const int64_t first_cut = begin / range + 1, last_cut = (begin + tiles - 1) / range;
    const int64_t pieces_before = cut_sums[first_cut] + cut_unit_sums[first_cut];
    const int num_pieces = static_cast<int>(last_cut - first_cut) + 2;
    WriteUnit(p, seq, unit,
              {.num_pieces = num_pieces,
               .item = int64_t{seq} * per_seq + unit + cut_sums[first_cut],
               .partial = num_pieces > 1 ? pieces_before * p.units.rows() : -1,
               .first_cut = first_cut * range - begin,
               .step = range,
               .count = tiles});
  });
  ForEachRangeStart(p, [&](int i) {
    if (i >= num_ranges) {
      p.block_starts[i] = p.num_seqs * per_seq + static_cast<int32_t>(cut_sums[num_ranges]);
      return;
    }
    const TilePlace at = PlaceOf(p, tile_sums, i * range);
    p.block_starts[i] =
        at.seq * per_seq + at.unit + (at.offset > 0 ? 1 : 0) + static_cast<int32_t>(cut_sums[i]);
  });
}

// Cuts each sequence at fixed positions. Every unit is merged.
__device__ __forceinline__ void PlanFixedCuts(const PlanDecodesParams& p) {
  int64_t* const tile_sums = DynamicShared<int64_t>();
  int64_t* const item_sums = tile_sums + p.num_seqs + 1;
  int64_t* const scratch = item_sums + p.num_seqs + 1;
  const int per_seq = p.units.per_seq(), piece_tiles = p.fixed_split_tiles;
  const auto pieces_of = [&](int seq) {
    const DecodeTiles tiles = TilesOf(p, seq);
    return CutAtMultiples(tiles.first, tiles.count, piece_tiles);
  };
  PrefixSums(tile_sums, p.num_seqs, scratch,
             [&](int seq) { return int64_t{TilesOf(p, seq).count} * per_seq; });
  PrefixSums(item_sums, p.num_seqs, scratch,
             [&](int seq) { return int64_t{pieces_of(seq).count} * per_seq; });

  ForEachUnit(p, [&](int seq, int unit) {
    const FixedPieces pieces = pieces_of(seq);
    const int64_t item = item_sums[seq] + int64_t{unit} * pieces.count;
    WriteUnit(p, seq, unit,
              {.num_pieces = pieces.count,
               .item = item,
               .partial = item * p.units.rows(),
               .first_cut = pieces.first_cut,
               .step = piece_tiles,
               .count = TilesOf(p, seq).count});
  });
  // A range begins with the first piece that begins in its share of the tiles, or after it.
  const int64_t total = tile_sums[p.num_seqs];
  const int64_t range = base::CeilDiv(total, p.num_ranges);
  ForEachRangeStart(p, [&](int i) {
    if (i * range >= total) {
      p.block_starts[i] = static_cast<int32_t>(item_sums[p.num_seqs]);
      return;
    }
    const TilePlace at = PlaceOf(p, tile_sums, i * range);
    const FixedPieces pieces = pieces_of(at.seq);
    int piece = 0;
    if (at.offset > 0) {
      piece = 1 + base::CeilDiv(std::max(0, at.offset - pieces.first_cut), piece_tiles);
    }
    p.block_starts[i] = static_cast<int32_t>(item_sums[at.seq]) + at.unit * pieces.count + piece;
  });
}

template <bool kFixedSplit>
__global__ void __launch_bounds__(kPlanThreads)
    PlanDecodesKernel(const __grid_constant__ PlanDecodesParams p) {
  if constexpr (kFixedSplit) {
    PlanFixedCuts(p);
  } else {
    PlanEqualCuts(p);
  }
  if (p.queue != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *p.queue = {};
}

}  // namespace quire::kernels::cuda
