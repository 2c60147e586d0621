#pragma once

// The cut of top_k, top_p and typical_p on a device: finds the last id, in some order, that is
// needed for a mass. kernels/sampling/select_mass.h defines the result.

#include "kernels/cuda/sample/sample_block.cuh"

namespace quire::kernels::cuda {

inline constexpr int kBins = 512;

struct SelectMemory {
  int64_t bins[kBins];
  int64_t before;
  int bin;
  alignas(16) unsigned char reduce[kMostWarps * 8];
};

inline constexpr int64_t kSampleSharedBytes = sizeof(SelectMemory);

// The order of the ids of a cut, and their weights.
struct CutOrder {
  bool by_distance = false;  // typical_p
  bool by_count = false;     // top_k: every id weighs 1
};

// One warp finds the first bin up to which the bins and `before` weigh at least `mass`, or the last
// bin if there is none. Writes its index, and the weight before it.
__device__ __forceinline__ void FindCutBin(SelectMemory& memory, int64_t before, double mass) {
  constexpr int kPerLane = kBins / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  int64_t own = 0;
  for (int i = 0; i < kPerLane; ++i) own += memory.bins[lane * kPerLane + i];
  const int64_t sum = WarpPrefixSum(own);
  const unsigned reached = __ballot_sync(
      0xffffffffu, lane == kWarpLanes - 1 || static_cast<double>(before + sum) >= mass);
  if ((reached & ((2u << lane) - 1)) != 1u << lane) return;  // not the first lane
  before += sum - own;
  int bin = lane * kPerLane;
  while (bin < kBins - 1 && static_cast<double>(before + memory.bins[bin]) < mass) {
    before += memory.bins[bin++];
  }
  memory.before = before;
  memory.bin = bin;
}

// Returns the last of the fewest ids of `kept`, in the given order, that weigh at least `mass`.
// They must weigh that much. All threads of the block call this, and get the same result.
//
// Orders ids by up to three keys: distance, logit, id. The ids whose present key is in [low, high]
// are weighed in bins of equal width. Then only the ids of the bin with the cut remain. If they all
// have the same key, the next key orders them. So each round reads the row twice, and one or two
// rounds are usual.
__device__ __forceinline__ IdPlace SelectLast(const LogitRow& row, const KeptIds& kept,
                                              CutOrder order, double mass, SelectMemory& memory) {
  IdPlace fixed;  // the keys before `level`, which all remaining ids have
  int level = order.by_distance ? 0 : 1;
  double low = -std::numeric_limits<double>::infinity(), high = -low;
  double scale = 0.0;
  int bin = -1;  // of the remaining ids; -1: all in [low, high]
  int64_t before = 0;
  const auto key_of = [&](int id, float logit) {
    if (level == 2) return static_cast<double>(id);
    return level == 1 ? -static_cast<double>(logit) : kept.Distance(row, logit);
  };
  const auto bin_of = [&](double key) {
    // `scale` is infinite if the keys are nearly equal.
    if (!(scale <= std::numeric_limits<double>::max())) return key > low ? kBins - 1 : 0;
    return static_cast<int>((key - low) * scale);
  };
  const auto remains = [&](int id, float logit) {
    if (!kept.Has(row, id, logit)) return false;
    if (order.by_distance && level > 0 && kept.Distance(row, logit) != fixed.distance) return false;
    if (level > 1 && logit != fixed.logit) return false;
    const double key = key_of(id, logit);
    return key >= low && key <= high && (bin < 0 || bin_of(key) == bin);
  };
  for (;;) {
    double least = std::numeric_limits<double>::infinity(), most = -least;
    ForEachId(row.logits, row.size, [&](int id, float logit) {
      if (!remains(id, logit)) return;
      const double key = key_of(id, logit);
      least = key < least ? key : least;
      most = key > most ? key : most;
    });
    low = BlockReduce(least, memory.reduce, [](double a, double b) { return a < b ? a : b; });
    high = BlockReduce(most, memory.reduce, [](double a, double b) { return a > b ? a : b; });
    bin = -1;
    if (low == high) {
      if (level == 0) fixed.distance = low;
      if (level == 1) fixed.logit = static_cast<float>(-low);
      if (level == 2) {
        fixed.id = static_cast<int>(low);
        return fixed;
      }
      ++level;
      low = -std::numeric_limits<double>::infinity();
      high = -low;
      continue;
    }
    scale = (kBins - 1) / (high - low);
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += static_cast<int>(blockDim.x)) {
      memory.bins[i] = 0;
    }
    __syncthreads();
    ForEachId(row.logits, row.size, [&](int id, float logit) {
      if (!remains(id, logit)) return;
      const int64_t weight = order.by_count ? 1 : WeightUnits(row, logit);
      if (weight != 0) AtomicAdd(&memory.bins[bin_of(key_of(id, logit))], weight);
    });
    __syncthreads();
    if (threadIdx.x < kWarpLanes) FindCutBin(memory, before, mass);
    __syncthreads();
    before = memory.before;
    bin = memory.bin;
  }
}

}  // namespace quire::kernels::cuda
