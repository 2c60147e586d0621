#pragma once

// The rows of a lane: which query and head each is, what it sees, and where its result goes.

#include <algorithm>

#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/attention/attn_shape.cuh"
#include "kernels/cuda/attention/attn_softmax.cuh"

namespace quire::kernels::cuda {

// The query of a row, counted from the first of its sequence, and the query head.
struct QueryAndHead {
  int query, head;

  template <typename T>
  __device__ __forceinline__ QueryAndHead(const AttnParams<T>& p, const AttentionItem& item,
                                          int row)
      : query(row / p.group), head(item.kv_head * p.group + (row - query * p.group)) {}
};

// The two rows of a lane. Rows past the end of the item repeat the last row, and are not stored.
struct LaneRows {
  int position[2];
  int first_key[2];  // the first key that the row sees
  int head[2];
  float slope[2];    // times log2(e)
  int64_t place[2];  // of the row's (token, head) in the query and the output

  template <typename T>
  __device__ __forceinline__ LaneRows(const AttnParams<T>& p, const AttentionItem& item, int row) {
    const int64_t first_token = p.query_starts[item.seq];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int known = std::min(item.first_row + row + h * 8, item.first_row + item.num_rows - 1);
      const QueryAndHead of(p, item, known);
      int64_t token = first_token + of.query;
      head[h] = of.head;
      position[h] = item.first_position + of.query;
      if (item.first_member >= 0) {
        const SharedMember member = p.members[item.first_member + of.query];
        token = member.token;
        position[h] = member.position;
      }
      place[h] = token * p.num_heads + of.head;
      first_key[h] = static_cast<int>(p.pattern.FirstKey(position[h]));
      slope[h] = p.slopes != nullptr ? p.slopes[head[h]] * kLog2E : 0.0f;
    }
  }

  // Loads the fragments of the queries. `column` is the lane's first column of a tile of 8.
  template <typename T, int kDepthSteps>
  __device__ __forceinline__ void LoadQueries(const T* query, int column,
                                              uint32_t (&q)[kDepthSteps][4]) const {
#pragma unroll
    for (int k = 0; k < kDepthSteps; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[k][i] = LoadReadOnly<uint32_t>(query + place[i % 2] * (kDepthSteps * 16) + k * 16 +
                                         column + i / 2 * 8);
      }
    }
  }
};

// Adjacent columns of a row, rounded to T.
template <int kCount>
struct alignas(2 * kCount) LaneWords {
  uint32_t at[kCount / 2];
};

template <typename T, int kCount>
__device__ __forceinline__ LaneWords<kCount> PackLane(const LaneFloats<kCount>& x) {
  LaneWords<kCount> words;
#pragma unroll
  for (int j = 0; j < kCount; j += 2) words.at[j / 2] = Pack2<T>(x.at[j], x.at[j + 1]);
  return words;
}

// Adds a sink, which is a score without a key, to the sum of a row with this maximum. Returns the
// factor by which this changes the weights of the keys.
__device__ __forceinline__ float AddSink(float sink, float maximum, float& sum) {
  const float m = fmaxf(maximum, sink);
  const float weight = Exp2(maximum - m);
  sum = sum * weight + Exp2(sink - m);
  return weight;
}

// Stores the column tiles of this warp (AddUpWarps): to the output if the item is a whole unit,
// else to the partial results. An item of shared keys is never a whole unit.
template <typename T, typename Shape>
__device__ __forceinline__ void StoreRows(
    const AttnParams<T>& p, const AttentionItem& item, AttnPlace<Shape> at, OnlineSoftmax softmax,
    const float (&own)[Shape::kOwnColumnTiles][2 * Shape::kLaneColumns]) {
  constexpr int kLaneColumns = Shape::kLaneColumns, kTileColumns = 4 * kLaneColumns;
  const int64_t first_token = p.query_starts[item.seq];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row_of_item = at.row() + h * 8;
    if (row_of_item >= item.num_rows) continue;
    const auto [query, head] = QueryAndHead(p, item, item.first_row + row_of_item);
    float weight = 1.0f;
    if (item.partial < 0 && p.sinks != nullptr) {
      weight = AddSink(p.sinks[head] * kLog2E, softmax.maximum[h], softmax.sum[h]);
    }
    const float sum = softmax.sum[h];
    const float inverse = sum > 0.0f ? weight / sum : 0.0f;
    const int64_t partial_row = int64_t{item.partial} + row_of_item;
    const int64_t out_row = (first_token + query) * p.num_heads + head;
    const int64_t to = (item.partial < 0 ? out_row : partial_row) * Shape::kHeadDim +
                       at.key_warp * kTileColumns + at.out_column();
#pragma unroll
    for (int i = 0; i < Shape::kOwnColumnTiles; ++i) {
      if (!Shape::HasColumnTile(i * Shape::kWarpsForKeys + at.key_warp)) continue;
      LaneFloats<kLaneColumns> x;
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) x.at[j] = own[i][h * kLaneColumns + j] * inverse;
      const int64_t place = to + i * Shape::kWarpsForKeys * kTileColumns;
      if (item.partial < 0) {
        StoreVector(p.out + place, PackLane<T>(x));
      } else {
        StoreVector(p.partial_out + place, x);
      }
    }
    if (item.partial >= 0 && at.key_warp == 0 && at.lane % 4 == 0) {
      p.partial_lse[partial_row] = sum > 0.0f ? softmax.maximum[h] + Log2(sum) : -INFINITY;
    }
  }
}

}  // namespace quire::kernels::cuda
