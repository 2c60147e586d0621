#pragma once

// The op Sample (kernels/ops/sample.h) on a device. One block handles one row at a time, and draws
// the token that the sampler of the host would draw (kernels/sampling/sampler.h). Both use the same
// arithmetic. Sums of weights are exact, so their order does not matter.
//
// A row is read from memory once to find its maximum, once to draw, once for a rank, and two to six
// times for each cut and for log-probabilities. A row of 128k logits is 512 KiB, which a
// multiprocessor reads from the L2 cache in about 5 us.

#include "kernels/cuda/sample/sample.h"
#include "kernels/cuda/sample/sample_select.cuh"
#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/penalties.h"

namespace quire::kernels::cuda {

// All threads call the functions below for the same row.

// The slot of a row that has one.
struct SlotData {
  const LogitBias* biases;
  const uint64_t *allowed, *banned;
  const int32_t* seen;
};

__device__ __forceinline__ SlotData SlotOf(const SampleKernelParams& p,
                                           const DeviceSampleRow& row) {
  const int32_t* const words = p.slots + row.slot * p.layout.num_words();
  return {.biases = reinterpret_cast<const LogitBias*>(words + p.layout.biases()),
          .allowed = reinterpret_cast<const uint64_t*>(words + p.layout.allowed()),
          .banned = reinterpret_cast<const uint64_t*>(words + p.layout.banned()),
          .seen = words + p.layout.seen()};
}

// Copies the logits to `edited`, with the penalties.
__device__ __forceinline__ void CopyWithPenalties(const SampleKernelParams& p,
                                                  const DeviceSampleRow& row, const int32_t* seen,
                                                  const float* logits, int size, float* edited) {
  // The host does not know the last token yet, so `seen` lacks it.
  const int previous = row.previous < 0 ? -1 : p.drawn[row.previous];
  ForEachId(logits, size, [&](int id, float logit) {
    const int count = seen[id] + (id != previous ? 0 : seen[id] == 0 ? 2 : 1);
    if (count > 0) sampling::Penalise(row, count - 1, logit);
    edited[id] = logit;
  });
}

// The first of several biases of an id adds all of them, in order.
__device__ __forceinline__ void ApplyBiases(const LogitBias* biases, int num_biases, int size,
                                            float* edited) {
  for (int i = static_cast<int>(threadIdx.x); i < num_biases; i += static_cast<int>(blockDim.x)) {
    const int id = biases[i].token_id;
    if (id < 0 || id >= size) continue;
    bool is_first = true;
    for (int j = 0; j < i && is_first; ++j) is_first = biases[j].token_id != id;
    if (!is_first) continue;
    float logit = edited[id];
    for (int j = i; j < num_biases; ++j) {
      if (biases[j].token_id == id) logit += biases[j].bias;
    }
    edited[id] = logit;
  }
  __syncthreads();
}

__device__ __forceinline__ bool SetHas(const uint64_t* words, int id) {
  return (words[id / 64] >> (id % 64) & 1) != 0;
}

__device__ __forceinline__ void Ban(const int32_t* ids, int num_ids, int size, float* edited) {
  for (int i = static_cast<int>(threadIdx.x); i < num_ids; i += static_cast<int>(blockDim.x)) {
    if (ids[i] >= 0 && ids[i] < size) edited[ids[i]] = -INFINITY;
  }
}

// Returns the logits to draw from: the row itself, or a changed copy of it.
__device__ __forceinline__ const float* EditLogits(const SampleKernelParams& p,
                                                   const DeviceSampleRow& row, const float* logits,
                                                   int size) {
  if (row.slot < 0 && row.bans_end_ids == 0 && p.num_holes == 0) return logits;
  float* const edited = p.edited + int64_t{blockIdx.x} * p.num_drawable;
  const SlotData slot = row.slot < 0 ? SlotData{} : SlotOf(p, row);
  if (row.has_penalties != 0) {
    CopyWithPenalties(p, row, slot.seen, logits, size, edited);
  } else {
    ForEachId(logits, size, [&](int id, float logit) { edited[id] = logit; });
  }
  __syncthreads();
  if (row.num_biases > 0) ApplyBiases(slot.biases, row.num_biases, size, edited);
  if (row.has_allowed != 0 || row.has_banned != 0) {
    ForEachId(edited, size, [&](int id, float) {
      const bool allowed = row.has_allowed == 0 || SetHas(slot.allowed, id);
      if (!allowed || (row.has_banned != 0 && SetHas(slot.banned, id))) edited[id] = -INFINITY;
    });
  }
  __syncthreads();
  Ban(p.holes, p.num_holes, size, edited);
  __syncthreads();
  if (row.bans_end_ids != 0) Ban(p.end_ids, p.num_end_ids, size, edited);
  __syncthreads();
  return edited;
}

__device__ __forceinline__ int64_t SumOfWeights(const LogitRow& row, const KeptIds& kept,
                                                SelectMemory& memory) {
  int64_t sum = 0;
  ForEachId(row.logits, row.size, [&](int id, float logit) {
    if (kept.Has(row, id, logit)) sum += WeightUnits(row, logit);
  });
  return BlockSumOf(sum, memory.reduce);
}

__device__ __forceinline__ int64_t CountOf(const LogitRow& row, const KeptIds& kept,
                                           SelectMemory& memory) {
  int64_t count = 0;
  ForEachId(row.logits, row.size,
            [&](int id, float logit) { count += kept.Has(row, id, logit) ? 1 : 0; });
  return BlockSumOf(count, memory.reduce);
}

__device__ __forceinline__ void KeepFirst(const LogitRow& row, int count, KeptIds& kept,
                                          SelectMemory& memory) {
  if (count >= CountOf(row, kept, memory)) return;
  kept.last = SelectLast(row, kept, {.by_count = true}, count, memory);
  kept.cuts = true;
}

// See kernels/sampling/typical_p.cc.
__device__ __forceinline__ void KeepTypical(const LogitRow& row, float typical_p, KeptIds& kept,
                                            SelectMemory& memory) {
  int64_t sum = 0, weighted_depth = 0;
  ForEachId(row.logits, row.size, [&](int id, float logit) {
    if (!kept.Has(row, id, logit)) return;
    const int64_t weight = WeightUnits(row, logit);
    sum += weight;
    const double product = static_cast<double>(weight) / sampling::kWeightUnits *
                           sampling::Depth(logit, row.max, row.temperature);
    if (weight != 0) {
      weighted_depth +=
          static_cast<int64_t>(sampling::RoundWeightedDepth(product) * sampling::kWeightUnits);
    }
  });
  sum = BlockSumOf(sum, memory.reduce);
  weighted_depth = BlockSumOf(weighted_depth, memory.reduce);
  kept.mean_depth = static_cast<double>(weighted_depth) / static_cast<double>(sum);
  const double mass = static_cast<double>(typical_p) * static_cast<double>(sum);
  kept.last_typical = SelectLast(row, kept, {.by_distance = true}, mass, memory);
  kept.cuts_untypical = true;
}

__device__ __forceinline__ KeptIds Keep(const DeviceSampleRow& params, const LogitRow& row,
                                        SelectMemory& memory) {
  KeptIds kept;
  if (params.top_k > 0 && params.top_k < row.size) KeepFirst(row, params.top_k, kept, memory);
  if (params.typical_p < 1.0f) KeepTypical(row, params.typical_p, kept, memory);
  if (params.top_p < 1.0f) {
    const double mass =
        static_cast<double>(params.top_p) * static_cast<double>(SumOfWeights(row, kept, memory));
    kept.last = SelectLast(row, kept, {}, mass, memory);
    kept.cuts = true;
  }
  return kept;
}

// Returns the largest logit that is kept.
__device__ __forceinline__ float MaxOf(const LogitRow& row, const KeptIds& kept,
                                       SelectMemory& memory) {
  if (!kept.cuts_untypical) return row.max;  // the other cuts keep it
  float max = -INFINITY;
  ForEachId(row.logits, row.size, [&](int id, float logit) {
    if (kept.Has(row, id, logit)) max = fmaxf(max, logit);
  });
  return BlockReduce(max, memory.reduce, [](float a, float b) { return fmaxf(a, b); });
}

// Returns the kept id with the largest logit / temperature + Gumbel, the lowest of equals.
__device__ __forceinline__ int DrawWithNoise(const SampleKernelParams& p, const LogitRow& row,
                                             const KeptIds& kept, float max,
                                             const sampling::NoiseKey& key, SelectMemory& memory) {
  double best = -std::numeric_limits<double>::infinity();
  int best_id = std::numeric_limits<int>::max();
  const int step = static_cast<int>(blockDim.x) * 4;
  for (int first = static_cast<int>(threadIdx.x) * 4; first < row.size; first += step) {
    bool has_bits = false;
    sampling::PhiloxCounter bits = {};
    for (int i = 0; i < 4 && first + i < row.size; ++i) {
      const int id = first + i;
      const float logit = row.logits[id];
      if (!kept.Has(row, id, logit)) continue;
      const double base = (static_cast<double>(logit) - max) / row.temperature;
      const double to_reach = best - base;
      if (to_reach > sampling::kMaxGumbel) continue;
      if (!has_bits) {
        bits = sampling::Philox4x32(sampling::NoiseCounter(key, static_cast<uint32_t>(id) / 4),
                                    sampling::NoisePhiloxKey(key));
        has_bits = true;
      }
      const uint32_t noise = bits[static_cast<size_t>(i)];
      if (noise < sampling::BitsThatMayReach(p.reach, to_reach)) continue;
      const double score = sampling::NoisyScore(logit, max, row.temperature, noise);
      if (score > best || (score == best && id < best_id)) {
        best = score;
        best_id = id;
      }
    }
  }
  const double winner =
      BlockReduce(best, memory.reduce, [](double a, double b) { return a > b ? a : b; });
  return BlockReduce(best == winner ? best_id : std::numeric_limits<int>::max(), memory.reduce,
                     [](int a, int b) { return a < b ? a : b; });
}

// Returns 1 + the number of larger keys in the row.
__device__ __forceinline__ int RankOf(const LogitRow& raw, uint64_t key, SelectMemory& memory) {
  int64_t count = 0;
  ForEachId(raw.logits, raw.size,
            [&](int id, float logit) { count += LogitKey(logit, id) > key ? 1 : 0; });
  return 1 + static_cast<int>(BlockSumOf(count, memory.reduce));
}

// Writes what the host needs for the log-probabilities of row i.
__device__ __forceinline__ void WriteLogprobs(const SampleKernelParams& p, int i,
                                              const LogitRow& raw, const DeviceSampleRow& row,
                                              DeviceSampleResult& result, SelectMemory& memory) {
  KeptIds kept;
  result.sum = SumOfWeights(raw, kept, memory);
  const bool has_id = result.id >= 0 && result.id < raw.size;
  result.chosen_logit = has_id ? raw.logits[result.id] : -INFINITY;
  if (row.wants_rank != 0)
    result.rank = RankOf(raw, LogitKey(result.chosen_logit, result.id), memory);
  if (row.num_top <= 0) return;
  KeepFirst(raw, row.num_top, kept, memory);
  if (threadIdx.x == 0) memory.bin = 0;
  __syncthreads();
  ForEachId(raw.logits, raw.size, [&](int id, float logit) {
    if (!kept.Has(raw, id, logit)) return;
    p.tops[int64_t{i} * kMostTopLogprobs + AtomicAdd(&memory.bin, 1)] = {.token_id = id,
                                                                         .logprob = logit};
  });
  __syncthreads();
  result.num_top = memory.bin;
}

// Returns the key of the largest logit of the block's row, or 0 if the row is empty.
__device__ __forceinline__ uint64_t BestKey(const float* logits, int size, SelectMemory& memory) {
  uint64_t best = 0;
  ForEachId(logits, size, [&](int id, float logit) {
    const uint64_t key = LogitKey(logit, id);
    best = key > best ? key : best;
  });
  return LargestKey(best, memory.reduce);
}

__device__ __forceinline__ DeviceSampleResult SampleOne(const SampleKernelParams& p, int i,
                                                        SelectMemory& memory) {
  const DeviceSampleRow row = p.rows[i];
  const float* const logits = p.logits + int64_t{row.row} * p.num_ids;
  uint64_t best = BestKey(logits, p.num_ids, memory);
  DeviceSampleResult result;
  result.max = LogitOfKey(best);
  if (!(result.max > -INFINITY && result.max < INFINITY)) {
    result.status = DeviceSampleResult::kNotFinite;
    return result;
  }
  const LogitRow raw = {
      .logits = logits, .size = p.num_ids, .max = result.max, .temperature = 1.0f};
  result.id = row.given;
  if (row.given < 0) {
    const int size = std::min(p.num_drawable, p.num_ids);
    const float* const edited = EditLogits(p, row, logits, size);
    if (edited != logits || size != p.num_ids) best = BestKey(edited, size, memory);
    if (size == 0 || LogitOfKey(best) == -INFINITY) {
      result.status = DeviceSampleResult::kNoneLeft;
      result.id = 0;
      return result;
    }
    result.id = IdOfKey(best);
    if (row.temperature > 0.0f) {
      const LogitRow draws = {
          .logits = edited, .size = size, .max = LogitOfKey(best), .temperature = row.temperature};
      KeptIds kept = Keep(row, draws, memory);
      const float max = MaxOf(draws, kept, memory);
      if (row.min_p_depth >= 0.0) kept.lowest = max - row.min_p_depth;
      result.id =
          DrawWithNoise(p, draws, kept, max, {.seed = row.seed, .position = row.position}, memory);
    }
  }
  if (row.num_top >= 0) WriteLogprobs(p, i, raw, row, result, memory);
  return result;
}

// The most threads of a block, so that each may have 168 registers.
inline constexpr int kMostSampleThreads = 384;

// The block has at most kThreads threads, in whole warps.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1)
    SampleKernel(const __grid_constant__ SampleKernelParams p) {
  SelectMemory& memory = *DynamicShared<SelectMemory>();
  for (int i = static_cast<int>(blockIdx.x); i < p.num_rows; i += static_cast<int>(gridDim.x)) {
    // A row begins with the barriers of BestKey: after them, no thread reads the memory of the row
    // before.
    const DeviceSampleResult result = SampleOne(p, i, memory);
    if (threadIdx.x == 0) p.results[i] = result;
  }
}

struct StoreDrawnParams {
  const DeviceSampleRow* rows;
  const DeviceSampleResult* results;
  int32_t* drawn;
  int num_rows;
};

inline constexpr int kStoreDrawnThreads = 128;

// Stores the ids that a call drew. All rows of the call have read those of the call before.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    StoreDrawnKernel(const __grid_constant__ StoreDrawnParams p) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= p.num_rows || p.rows[i].given >= 0) return;
  p.drawn[p.rows[i].draw] = p.results[i].status == DeviceSampleResult::kOk ? p.results[i].id : 0;
}

}  // namespace quire::kernels::cuda
