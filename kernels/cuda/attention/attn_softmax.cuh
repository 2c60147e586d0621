#pragma once

// From the scores of a tile to weights: soft cap, ALiBi bias, mask, and the online softmax
// (arXiv:1805.02867). A lane has scores[n][i]: row i / 2 of its two rows, and column i % 2 of its
// two columns in each tile n of 8 keys. All scores are multiplied by log2(e), so that the weights
// are powers of 2.

#include "kernels/cuda/attention/attn_merge.cuh"
#include "kernels/cuda/attention/attn_shape.cuh"
#include "kernels/cuda/device/primitives.cuh"

namespace quire::kernels::cuda {

// Computes tanh(x) from e^(2x). tanh.approx has an error of 2^-11, and the cap would multiply this
// error.
template <int kTiles>
__device__ __forceinline__ void CapScores(float scale, float soft_cap, float (&scores)[kTiles][4]) {
  const float cap = soft_cap * kLog2E;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float power = Exp2(2.0f * kLog2E * scale * scores[n][i]);
      scores[n][i] = cap - 2.0f * cap * Reciprocal(1.0f + power);
    }
  }
}

template <int kTiles>
__device__ __forceinline__ void ScaleScores(float scale, float (&scores)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] *= scale;
  }
}

// Multiplies the scores by `scale`, and adds slope * distance. `distance` is that of the lane's
// first key from the row's query: at most 0 if the row sees the key.
template <int kTiles>
__device__ __forceinline__ void ScaleAndBiasScores(float scale, const float (&slope)[2],
                                                   const int (&distance)[2],
                                                   float (&scores)[kTiles][4]) {
  float first[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) first[h] = slope[h] * static_cast<float>(distance[h]);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float bias = fmaf(slope[i / 2], static_cast<float>(n * 8 + i % 2), first[i / 2]);
      scores[n][i] = fmaf(scores[n][i], scale, bias);
    }
  }
}

// Hides the keys with an offset from the lane's first key outside [first_seen, last_seen].
template <int kTiles>
__device__ __forceinline__ void MaskScores(const int (&first_seen)[2], const int (&last_seen)[2],
                                           float (&scores)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int offset = n * 8 + i % 2;
      const bool seen = offset >= first_seen[i / 2] && offset <= last_seen[i / 2];
      scores[n][i] = seen ? scores[n][i] : -INFINITY;
    }
  }
}

// The softmax of a lane's two rows over the keys that the warp has processed.
struct OnlineSoftmax {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};  // of this lane's weights; SumOfLanes adds up those of the row

  // Turns the scores of a tile into weights. Returns in `rescale` the factors by which the new
  // maximum changes the weights before. The sums are multiplied by these factors here; the caller
  // multiplies the output (Rescale).
  template <int kTiles>
  __device__ __forceinline__ void Weigh(float (&scores)[kTiles][4], float (&rescale)[2]) {
    float subtract[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = fmaxf(scores[0][h * 2], scores[0][h * 2 + 1]);
#pragma unroll
      for (int n = 1; n < kTiles; ++n) m = fmaxf(m, fmaxf(scores[n][h * 2], scores[n][h * 2 + 1]));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
      const float before = maximum[h];
      maximum[h] = fmaxf(before, m);
      // If a row has seen no key yet, its maximum is -infinity. Then 0 is subtracted from the
      // scores instead, so that all weights are 0 and none is NaN.
      subtract[h] = maximum[h] == -INFINITY ? 0.0f : maximum[h];
      rescale[h] = Exp2(before - subtract[h]);
      sum[h] *= rescale[h];
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = Exp2(scores[n][i] - subtract[i / 2]);
        sum[i / 2] += scores[n][i];
      }
    }
  }

  // Adds up the sums of the four lanes that have the same rows.
  __device__ __forceinline__ void SumOfLanes() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
      sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
    }
  }
};

// Multiplies the lane's part of the output by the factors that Weigh returned.
template <int kColumnTiles>
__device__ __forceinline__ void Rescale(const float (&rescale)[2], float (&out)[kColumnTiles][4]) {
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[c][i] *= rescale[i / 2];
  }
}

}  // namespace quire::kernels::cuda
