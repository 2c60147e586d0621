#pragma once

// Passes over a whole row of logits. They run over the whole vocabulary for every token, so they
// are written for compilers to vectorise.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/sampling/gumbel.h"

namespace quire::kernels::sampling {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A row is processed in blocks of this many ids; the last one may be short.
inline constexpr int64_t kRowBlock = 128;

constexpr int64_t NumRowBlocks(int64_t num_logits) {
  return (num_logits + kRowBlock - 1) / kRowBlock;
}

// Writes the largest logit of each block into `maxima`. NaN counts as -infinity.
void BlockMaxima(std::span<const float> logits, std::span<float> maxima);

// Returns the id with the largest logit, and the lowest such id if several are equal. Returns -1
// when no logit is above -infinity. BlockMaxima computes `maxima`.
int32_t ArgMax(std::span<const float> logits, std::span<const float> maxima);

// Returns how far a logit is below `max`, in units of the temperature. kLowestDepth keeps depths
// finite at any temperature. Weights are 0 long before it.
inline constexpr double kLowestDepth = -1e9;
constexpr double Depth(float logit, float max, float temperature) {
  const double depth = (static_cast<double>(logit) - max) / temperature;
  return depth > kLowestDepth ? depth : kLowestDepth;
}

// Returns the weight of a logit relative to the largest one: e^((logit - max) / temperature),
// rounded by RoundWeight. Returns 0 for NaN and -infinity.
double Weight(float logit, float max, float temperature);

// Returns the sum of Weight over a row, which is the denominator of the softmax. The sum is exact
// for up to 2^18 ids. Fills `exponentials`, which has the size of the row, with the weights before
// they are rounded.
double SumOfWeights(std::span<const float> logits, float max, float temperature,
                    std::span<float> exponentials);

// Returns the id with the largest logit / temperature + Gumbel, and the lowest such id if several
// are equal. Returns -1 when no logit is above -infinity. Computes no Gumbel variable for blocks
// and ids that cannot reach the best score so far.
int32_t ArgMaxWithNoise(std::span<const float> logits, std::span<const float> maxima,
                        float temperature, const NoiseKey& key);

// Returns the score that ArgMaxWithNoise compares. It is relative to `max`, so that small
// temperatures lose no digits.
constexpr double NoisyScore(float logit, float max, float temperature, uint32_t noise_bits) {
  return (static_cast<double>(logit) - static_cast<double>(max)) /
             static_cast<double>(temperature) +
         GumbelFromBits(noise_bits);
}

}  // namespace quire::kernels::sampling
