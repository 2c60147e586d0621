#include "engine/model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/reproducible_math.h"

namespace quire::engine {
namespace {

// Divides frequencies of long wavelengths by the factor, keeps those of short wavelengths, and
// blends those in between.
double ScaleLlama3(double frequency, const RopeConfig& rope) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double context = static_cast<double>(rope.original_max_position_embeddings);
  if (wavelength < context / rope.high_freq_factor) return frequency;
  // low_freq_factor and high_freq_factor may be equal, as in Llama 4. One of the two conditions is
  // then true, so the division by their difference below is not reached.
  if (wavelength >= context / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (context / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

// Returns theta for num_positions positions. It grows beyond the original context. If the factor is
// 1, the longest wavelength grows by the same ratio as the context.
double DynamicTheta(const RopeConfig& rope, int64_t num_positions) {
  const double dims = static_cast<double>(rope.rope_dim);
  const double stretch = static_cast<double>(num_positions) /
                         static_cast<double>(rope.original_max_position_embeddings);
  if (stretch <= 1.0) return rope.theta;
  return rope.theta * base::Pow(rope.factor * stretch - (rope.factor - 1.0), dims / (dims - 2.0));
}

// Returns the share s of frequency i that YaRN divides by the factor, from 0 to 1: the scaled
// frequency is s * frequency / factor + (1 - s) * frequency. s depends on the number of full turns
// that a pair of dimensions makes over the trained context. s is 0 up to the index whose pair makes
// beta_fast turns, and 1 from the index whose pair makes beta_slow turns. Between the two indices,
// s grows linearly.
double YarnShare(const RopeConfig& rope, size_t i) {
  const auto dimension_of = [&](double turns) {
    const double positions = static_cast<double>(rope.original_max_position_embeddings);
    return static_cast<double>(rope.rope_dim) *
           base::Log(positions / (turns * 2.0 * std::numbers::pi)) / (2.0 * base::Log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rope_dim - 1));
  if (low == high) high += 0.001;
  return std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t num_positions) {
  const bool dynamic = rope.scaling == RopeScaling::kDynamic;
  const double theta = dynamic ? DynamicTheta(rope, num_positions) : rope.theta;
  std::vector<double> frequencies(rope.rope_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double frequency =
        base::Pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope.rope_dim));
    if (!rope.frequency_divisors.empty()) frequency /= rope.frequency_divisors[i];
    if (rope.scaling == RopeScaling::kLinear) frequency /= rope.factor;
    if (rope.scaling == RopeScaling::kLongRope) {
      const bool beyond = num_positions > rope.original_max_position_embeddings;
      frequency /= (beyond ? rope.long_factors : rope.short_factors)[i];
    }
    if (rope.scaling == RopeScaling::kLlama3) frequency = ScaleLlama3(frequency, rope);
    if (rope.scaling == RopeScaling::kYarn) {
      const double share = YarnShare(rope, i);
      frequency = share * frequency / rope.factor + (1.0 - share) * frequency;
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

std::vector<float> MakeRopeTable(const RopeConfig& rope, int64_t num_positions) {
  const std::vector<double> frequencies = RopeFrequencies(rope, num_positions);
  std::vector<float> table;
  table.reserve(num_positions * frequencies.size() * 2);
  for (int64_t position = 0; position < num_positions; ++position) {
    for (const double frequency : frequencies) {
      const base::SineCosine angle = base::SinCos(static_cast<double>(position) * frequency);
      table.push_back(static_cast<float>(rope.attention_factor * angle.cosine));
      table.push_back(static_cast<float>(rope.attention_factor * angle.sine));
    }
  }
  return table;
}

}  // namespace quire::engine
