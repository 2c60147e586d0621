#include "engine/scheduler/prefill_pacer.h"

#include <algorithm>
#include <cmath>

namespace quire::engine {
namespace {

// These constants apply to the natural logarithms of prices and times. If a logarithm grows by 0.1,
// the price or time grows by about 10 %.
constexpr double kDrift = 0.05;       // the drift of a price from one step to the next
constexpr double kUncertainty = 1.0;  // the variance of a price at first, and its upper bound
constexpr double kNoise = 0.1;        // the noise in the time of a step
constexpr double kMostUp = 0.4;       // the most that one step raises a price
constexpr double kMostDown = 0.1;     // the most that one step lowers a price
constexpr double kMostCalmUp = 1.02;  // the factor by which a step raises a calm price at most
// The first steps raise prices without limit, because nothing else is known yet.
constexpr int64_t kNumFirstSteps = 2;
// Measured times are clamped to this range. Outside it the clock must be wrong. Clamping also keeps
// logarithms finite.
constexpr absl::Duration kShortest = absl::Microseconds(1);
constexpr absl::Duration kLongest = absl::Hours(1);
constexpr double kCheapest = 1e-9;  // price, in seconds
// The least part of a step with one decode that is the price of the step, or of the decode. A price
// without any part of the time would never be corrected.
constexpr double kLeastShare = 0.02;

}  // namespace

void PrefillPacer::NoteStep(int32_t prompt_tokens, int32_t decodes, absl::Duration elapsed) {
  const Vector counts = {1.0, static_cast<double>(decodes), static_cast<double>(prompt_tokens)};
  most_prompt_tokens_ = std::max(most_prompt_tokens_, prompt_tokens);
  const double seconds = absl::ToDoubleSeconds(std::clamp(elapsed, kShortest, kLongest));
  if (num_steps_++ == 0) prices_.fill(seconds / (counts[0] + counts[1] + counts[2]));

  double predicted = 0.0;
  for (int i = 0; i < kNumPrices; ++i) {
    predicted += counts[i] * prices_[i];
    double& variance = variance_[i][i];
    variance = num_steps_ == 1 ? kUncertainty : variance + kDrift * kDrift;
    variance = std::min(variance, kUncertainty);
  }
  // The derivative of the logarithm of the predicted time with respect to the logarithm of a price
  // is that price's share of the time.
  Vector gain = {};
  double spread = kNoise * kNoise;
  for (int i = 0; i < kNumPrices; ++i) {
    for (int j = 0; j < kNumPrices; ++j) {
      gain[i] += variance_[i][j] * counts[j] * prices_[j] / predicted;
    }
    spread += gain[i] * counts[i] * prices_[i] / predicted;
  }
  double most_moved = 0.0;
  for (const double g : gain) most_moved = std::max(most_moved, std::abs(g) / spread);
  const double most_up = num_steps_ <= kNumFirstSteps ? HUGE_VAL : kMostUp / most_moved;
  const double surprise =
      std::clamp(std::log(seconds / predicted), -kMostDown / most_moved, most_up);
  for (int i = 0; i < kNumPrices; ++i) {
    prices_[i] = std::max(prices_[i] * std::exp(surprise * gain[i] / spread), kCheapest);
    calm_prices_[i] = num_steps_ <= kNumFirstSteps
                          ? prices_[i]
                          : std::min(prices_[i], calm_prices_[i] * kMostCalmUp);
    for (int j = 0; j < kNumPrices; ++j) variance_[i][j] -= gain[i] * gain[j] / spread;
  }
}

void PrefillPacer::NoteDecodes(absl::Duration one, int32_t decodes, absl::Duration together) {
  const double seconds = absl::ToDoubleSeconds(std::clamp(one, kShortest, kLongest));
  const double more = absl::ToDoubleSeconds(together - one) / (decodes - 1);
  prices_[1] = std::clamp(more, kLeastShare * seconds, (1.0 - kLeastShare) * seconds);
  prices_[0] = seconds - prices_[1];
  calm_prices_ = prices_;
}

double PrefillPacer::DecodeShare(int32_t decodes) const {
  return prices_[1] / (prices_[0] + decodes * prices_[1]);
}

absl::Duration PrefillPacer::LeastTime(int64_t prompt_tokens, int64_t decodes) const {
  if (2 * most_prompt_tokens_ < std::min<int64_t>(prompt_tokens, max_tokens_)) {
    return absl::ZeroDuration();
  }
  return absl::Seconds(static_cast<double>(prompt_tokens) * calm_prices_[2] +
                       static_cast<double>(decodes) * (calm_prices_[0] + calm_prices_[1]));
}

int32_t PrefillPacer::limit(int32_t decodes) const {
  if (target_ == 0.0 || num_steps_ == 0) return max_tokens_;
  const double left = target_ - prices_[0] - decodes * prices_[1];
  const double tokens = std::max(left, 0.0) / prices_[2];
  return static_cast<int32_t>(
      std::clamp<double>(tokens, std::min(kMinTokens, max_tokens_), max_tokens_));
}

}  // namespace quire::engine
