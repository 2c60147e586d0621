#pragma once

// The noise of a random draw: one Gumbel variable for each (seed, output position, token id).
//
//   counter = {id / 4, position low, position high, 0}, key = {seed low, seed high}
//   bits    = Philox4x32-10(counter, key)[id % 4]
//   u       = (bits + 1/2) / 2^32      in (0, 1), never 0 or 1
//   Gumbel  = -log(-log(u))            float64
//
// The argmax over ids of logit / T + Gumbel is a draw from softmax(logit / T) (the Gumbel-max
// trick). Each id has noise of its own, which depends neither on the other ids that are kept, nor
// on batch and order. The logarithms are those of base/reproducible_math.h, so the noise has the
// same bits on every machine.

#include <cstdint>
#include <span>

#include "base/reproducible_math.h"
#include "kernels/sampling/philox.h"

namespace quire::kernels::sampling {

// The key of the noise of one output position of one sample.
struct NoiseKey {
  uint64_t seed = 0;     // the seed of the request plus the index of the sample
  int64_t position = 0;  // tokens generated before this one
};

inline constexpr PhiloxCounter NoiseCounter(const NoiseKey& key, uint32_t id_over_4) {
  const auto position = static_cast<uint64_t>(key.position);
  return {id_over_4, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0};
}

inline constexpr PhiloxKey NoisePhiloxKey(const NoiseKey& key) {
  return {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)};
}

inline constexpr uint32_t NoiseBits(const NoiseKey& key, int32_t id) {
  const auto unsigned_id = static_cast<uint32_t>(id);
  return Philox4x32(NoiseCounter(key, unsigned_id / 4), NoisePhiloxKey(key))[unsigned_id % 4];
}

// Returns the Gumbel variable of `bits`. It increases with `bits`, from about -3.13 to about 22.87.
constexpr double GumbelFromBits(uint32_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) / 4294967296.0;
  return -base::Log(-base::Log(u));
}

// Larger than every result of GumbelFromBits. An id cannot win if its logit, divided by the
// temperature, is further than this below the best score.
inline constexpr double kMaxGumbel = 22.9;

// Returns a bound on the noise bits. Bits below the bound give a Gumbel variable of less than
// `gumbel`. So a caller can see without a logarithm that an id cannot win. The bound is never too
// high and sometimes a little too low.
uint32_t BitsThatMayReach(double gumbel);

// BitsThatMayReach for a device, which has a copy of ReachTable() at `table`.
inline constexpr double kMinGumbel = -4.0;  // below every result of GumbelFromBits
inline constexpr int kReachStepsPerUnit = 16;
inline constexpr int kNumReachSteps =
    static_cast<int>((kMaxGumbel - kMinGumbel) * kReachStepsPerUnit) + 1;
std::span<const uint32_t, kNumReachSteps> ReachTable();
constexpr uint32_t BitsThatMayReach(const uint32_t* table, double gumbel) {
  if (!(gumbel > kMinGumbel)) return 0;
  if (gumbel >= kMaxGumbel) return table[kNumReachSteps - 1];
  return table[static_cast<int>((gumbel - kMinGumbel) * kReachStepsPerUnit)];
}

}  // namespace quire::kernels::sampling
