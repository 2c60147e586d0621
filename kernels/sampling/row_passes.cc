#include "kernels/sampling/row_passes.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/sampling/exp.h"
#include "kernels/sampling/row_kernels.h"

namespace quire::kernels::sampling {
namespace {

// The best noisy score so far, and its id. Among equal scores, the lowest id stays, in whatever
// order the blocks are visited.
struct Best {
  int32_t id = -1;
  double score = -std::numeric_limits<double>::infinity();

  void Offer(int32_t other_id, double other_score) {
    if (other_score > score || (other_score == score && other_id < id)) {
      id = other_id;
      score = other_score;
    }
  }
};

}  // namespace

void BlockMaxima(std::span<const float> logits, std::span<float> maxima) {
  AvailableRowKernels().front().maxima(logits, maxima);
}

int32_t ArgMax(std::span<const float> logits, std::span<const float> maxima) {
  const auto best = std::max_element(maxima.begin(), maxima.end());  // the first of equals
  if (best == maxima.end() || *best == kMinusInfinity) return -1;
  auto id = static_cast<int64_t>(best - maxima.begin()) * kRowBlock;
  while (logits[id] != *best) ++id;
  return static_cast<int32_t>(id);
}

double Weight(float logit, float max, float temperature) {
  return RoundWeight(ExpOfNonPositive((logit - max) / temperature));
}

double SumOfWeights(std::span<const float> logits, float max, float temperature,
                    std::span<float> exponentials) {
  return AvailableRowKernels().front().sum(logits, max, temperature, exponentials);
}

int32_t ArgMaxWithNoise(std::span<const float> logits, std::span<const float> maxima,
                        float temperature, const NoiseKey& key) {
  const auto size = static_cast<int64_t>(logits.size());
  const auto top_block = std::max_element(maxima.begin(), maxima.end()) - maxima.begin();
  const float max = maxima[top_block];
  if (max == kMinusInfinity) return -1;

  const RowKernels& kernels = AvailableRowKernels().front();
  std::array<uint32_t, kRowBlock> bits;
  Best best;
  const auto visit = [&](int64_t block) {
    const int64_t first = block * kRowBlock;
    // The noise with which the largest logit of the block would reach the best score. Every other
    // id of the block needs at least this noise.
    const double to_reach = best.score - (static_cast<double>(maxima[block]) - max) / temperature;
    if (to_reach > kMaxGumbel) return;
    const uint32_t low = BitsThatMayReach(to_reach);
    if (!kernels.noise(key, first, low, bits.data())) return;
    const int64_t count = std::min(kRowBlock, size - first);
    for (int64_t i = 0; i < count; ++i) {
      if (bits[i] < low) continue;
      if (!(logits[first + i] > kMinusInfinity)) continue;
      best.Offer(static_cast<int32_t>(first + i),
                 NoisyScore(logits[first + i], max, temperature, bits[i]));
    }
  };
  visit(top_block);  // visited first, so that the other blocks have a score to beat
  for (int64_t block = 0; block < std::ssize(maxima); ++block) {
    if (block != top_block && maxima[block] > kMinusInfinity) visit(block);
  }
  return best.id;
}

}  // namespace quire::kernels::sampling
