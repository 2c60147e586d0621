#include "engine/model/rope_table.h"

#include <cmath>
#include <numbers>

namespace quire::engine {
namespace {

// Long wavelengths are slowed by the factor, short ones kept, those between blended.
double ScaleLlama3(double frequency, const RopeConfig& rope) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double context = static_cast<double>(rope.original_max_position_embeddings);
  if (wavelength < context / rope.high_freq_factor) return frequency;
  if (wavelength > context / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (context / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& rope) {
  std::vector<double> frequencies(rope.rope_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double frequency =
        std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope.rope_dim));
    if (!rope.frequency_divisors.empty()) frequency /= rope.frequency_divisors[i];
    if (rope.scaling == RopeScaling::kLinear) frequency /= rope.factor;
    if (rope.scaling == RopeScaling::kLlama3) frequency = ScaleLlama3(frequency, rope);
    frequencies[i] = frequency;
  }
  return frequencies;
}

std::vector<float> MakeRopeTable(const RopeConfig& rope, int64_t num_positions) {
  const std::vector<double> frequencies = RopeFrequencies(rope);
  std::vector<float> table;
  table.reserve(num_positions * frequencies.size() * 2);
  for (int64_t position = 0; position < num_positions; ++position) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

}  // namespace quire::engine
