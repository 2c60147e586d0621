#pragma once

// The passes over a whole row of logits, written so that compilers vectorise them: each runs over
// the whole vocabulary for every token.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/sampling/gumbel.h"

namespace quire::engine {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A row is processed in blocks of this many ids; the last one may be short.
inline constexpr int64_t kRowBlock = 128;

constexpr int64_t NumRowBlocks(int64_t num_logits) {
  return (num_logits + kRowBlock - 1) / kRowBlock;
}

// The largest logit of each block; NaN counts as -infinity.
void BlockMaxima(std::span<const float> logits, std::span<float> maxima);

// The lowest id whose logit equals the largest; -1 when none is above -infinity. `maxima` is
// BlockMaxima's.
int32_t ArgMax(std::span<const float> logits, std::span<const float> maxima);

// The weight of a logit relative to the largest one: e^((logit - max) / temperature), rounded by
// RoundWeight; 0 for NaN and -infinity.
double Weight(float logit, float max, float temperature);

// The sum of Weight over a row: the softmax's denominator. Exact up to 2^18 ids. Fills in
// `exponentials`, of the row's size, with the weights before they are rounded.
double SumOfWeights(std::span<const float> logits, float max, float temperature,
                    std::span<float> exponentials);

// The id whose logit / temperature + Gumbel is largest, the lowest of equals; -1 when no logit is
// above -infinity. Blocks and ids that no Gumbel could lift to the best so far are skipped without
// computing one.
int32_t ArgMaxWithNoise(std::span<const float> logits, std::span<const float> maxima,
                        float temperature, const NoiseKey& key);

// The score that ArgMaxWithNoise compares. Relative to `max`, so that small temperatures lose no
// digits.
inline double NoisyScore(float logit, float max, float temperature, uint32_t noise_bits) {
  return (static_cast<double>(logit) - static_cast<double>(max)) /
             static_cast<double>(temperature) +
         GumbelFromBits(noise_bits);
}

}  // namespace quire::engine
