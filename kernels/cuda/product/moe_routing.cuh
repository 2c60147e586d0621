#pragma once

// The kernels of a mixture of experts that run before and after the grouped products
// (grouped_gemm.cuh). They choose the experts of each token, assign a row to each choice, and sum
// up the experts' results. A choice is a pair (token, expert chosen for it). There are tokens *
// num_chosen choices, ordered by token.

#include <bit>

#include "kernels/cuda/device/rows.cuh"
#include "kernels/expert_weights.h"

namespace quire::kernels::cuda {

struct MoeRouteParams {
  const float* logits;       // [tokens, num_experts]
  const float* bias;         // [num_experts], added to the logits; null: none
  const float* choice_bias;  // [num_experts], as in MoeArgs; null: none
  int32_t* experts;          // [choices]
  float* weights;            // [choices]
  int32_t num_experts, num_chosen;
  ExpertWeights kind;
};

// Returns a key by which experts are ranked; the largest key is chosen first. The expert with the
// larger value has the larger key. Among equal values, the lower id has the larger key. NaN counts
// as larger than any number.
__device__ __forceinline__ uint64_t RouteKey(float value, int32_t expert) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);  // -0 becomes 0
  const uint32_t order = value != value       ? 0xffffffffu
                         : (bits >> 31) != 0u ? ~bits
                                              : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xffffffffu - static_cast<uint32_t>(expert));
}

__device__ __forceinline__ float Logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ uint64_t LargestOfWarp(uint64_t value) {
#pragma unroll
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
    value = std::max(value, __shfl_xor_sync(0xffffffffu, value, mask));
  }
  return value;
}

// One block, which is one warp, processes one token.
__global__ void __launch_bounds__(kWarpLanes)
    MoeRouteKernel(const __grid_constant__ MoeRouteParams p) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x);
  const float* const logits = p.logits + int64_t{blockIdx.x} * p.num_experts;
  const auto logit_of = [&](int32_t expert) {
    return p.bias == nullptr ? logits[expert] : logits[expert] + p.bias[expert];
  };
  const bool normed = p.kind == ExpertWeights::kNormedLogistic;
  const bool logistic = normed || p.kind == ExpertWeights::kLogistic;
  // Returns the value by which an expert is ranked.
  const auto value_of = [&](int32_t expert) {
    if (!normed) return logit_of(expert);
    const float value = Logistic(logit_of(expert));
    return p.choice_bias == nullptr ? value : value + p.choice_bias[expert];
  };
  int32_t* const experts = p.experts + int64_t{blockIdx.x} * p.num_chosen;
  float* const weights = p.weights + int64_t{blockIdx.x} * p.num_chosen;

  // Each round finds the best of the experts that rank after the expert of the previous round.
  uint64_t last = ~uint64_t{0};
  float largest = 0.0f, sum = 0.0f;
  for (int32_t i = 0; i < p.num_chosen; ++i) {
    uint64_t best = 0;
    for (int32_t e = lane; e < p.num_experts; e += kWarpLanes) {
      const uint64_t key = RouteKey(value_of(e), e);
      if (key < last) best = std::max(best, key);
    }
    last = LargestOfWarp(best);
    const int32_t expert = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(last));
    const float logit = logit_of(expert);
    if (i == 0) largest = logit;
    const float weight = logistic ? Logistic(logit) : expf(logit - largest);
    sum += weight;
    if (lane == 0) {
      experts[i] = expert;
      weights[i] = weight;
    }
  }
  if (p.kind == ExpertWeights::kLogistic) return;
  if (p.kind == ExpertWeights::kSoftmaxOfAll) {
    sum = 0.0f;
    for (int32_t e = lane; e < p.num_experts; e += kWarpLanes) sum += expf(logit_of(e) - largest);
#pragma unroll
    for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    }
  }
  if (normed) sum += kLeastLogisticSum;
  __syncwarp();
  for (int32_t i = lane; i < p.num_chosen; i += kWarpLanes) weights[i] /= sum;
}

struct MoeGroupParams {
  const int32_t* experts;  // [choices]
  int32_t* starts;         // [num_experts + 1]: each expert's first row
  int32_t* rows;           // [choices]: the row of each choice
  int32_t* choices;        // [choices]: the choice of each row
  int32_t num_choices;
};

inline constexpr int kGroupThreads = 256;
inline constexpr int kGroupSharedBytes = 2 * kGroupThreads * sizeof(int32_t);

// One block processes one expert. The rows of an expert are in the order of the choices. The order
// in which blocks run does not change the rows.
__global__ void __launch_bounds__(kGroupThreads)
    MoeGroupKernel(const __grid_constant__ MoeGroupParams p) {
  int32_t* const lower_counts = DynamicShared<int32_t>();
  int32_t* const counts = lower_counts + kGroupThreads;
  const int32_t expert = static_cast<int32_t>(blockIdx.x);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t share = (p.num_choices + kGroupThreads - 1) / kGroupThreads;
  const int32_t begin = thread * share;  // of the last threads, past the choices
  const int32_t end = std::min(begin + share, p.num_choices);
  int32_t lower = 0, mine = 0;
  for (int32_t i = begin; i < end; ++i) {
    const int32_t chosen = p.experts[i];
    lower += chosen < expert ? 1 : 0;
    mine += chosen == expert ? 1 : 0;
  }
  lower_counts[thread] = lower;
  counts[thread] = mine;
  __syncthreads();
  int32_t start = 0, before = 0;
  for (int32_t i = 0; i < kGroupThreads; ++i) {
    start += lower_counts[i];
    before += i < thread ? counts[i] : 0;
  }
  if (thread == 0) {
    p.starts[expert] = start;
    if (expert == 0) p.starts[gridDim.x] = p.num_choices;
  }
  int32_t row = start + before;
  for (int32_t i = begin; i < end; ++i) {
    if (p.experts[i] != expert) continue;
    p.rows[i] = row;
    p.choices[row] = i;
    ++row;
  }
}

struct MoeCombineParams {
  void* out;             // [tokens, hidden]
  const void* residual;  // [tokens, hidden], may be `out`; null: no residual
  const float* y;        // [rows, hidden]
  const int32_t* rows;   // [choices]
  const float* weights;  // [choices]; null: all are 1
  int32_t num_chosen;
  int64_t hidden;
};

// One block processes one token. It adds up the results of the token's experts in the order in
// which the router chose them.
template <typename T, int kCount>
__global__ void MoeCombineKernel(const __grid_constant__ MoeCombineParams p) {
  const int64_t token = int64_t{blockIdx.x} * p.hidden;
  const int32_t* const rows = p.rows + int64_t{blockIdx.x} * p.num_chosen;
  ForEachVector<kCount>(p.hidden, [&](int64_t i) {
    float sum[kCount] = {};
    for (int32_t j = 0; j < p.num_chosen; ++j) {
      const int64_t choice = int64_t{blockIdx.x} * p.num_chosen + j;
      const float weight = p.weights == nullptr ? 1.0f : p.weights[choice];
      float y[kCount];
      LoadElements(p.y + rows[j] * p.hidden + i, y);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sum[k] = fmaf(weight, y[k], sum[k]);
    }
    if (p.residual != nullptr) {
      float residual[kCount];
      LoadElements(static_cast<const T*>(p.residual) + token + i, residual);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sum[k] += residual[k];
    }
    StoreElements(static_cast<T*>(p.out) + token + i, sum);
  });
}

}  // namespace quire::kernels::cuda
