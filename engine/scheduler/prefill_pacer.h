#pragma once

// Limits the prompt tokens of a step beside decodes, so that no stream waits long for its next
// token (stall-free batching, Sarathi-Serve, arXiv:2403.02310). The limit moves the borders of
// chunks, on which no output depends.

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace quire::engine {

// A step's time is modelled as the sum of a price for the step, one for each decode and one for
// each prompt token. The prices depend on the machine, the model and the length of contexts, so
// every step corrects them: an extended Kalman filter on their logarithms, each of which drifts.
// Logarithms keep prices above zero, and make one rule fit machines whose prices are a thousand
// times apart. The drift is bounded: a long run of equal steps does not show how the three prices
// share their sum, and must not make any price uncertain without end.
//
// One step, however long or short, moves no price by more than kMostUp or kMostDown: a hiccup costs
// a third of the next step's prompts and is forgotten within some steps, and a wrong clock
// lengthens no step by more than a ninth.
class PrefillPacer {
 public:
  // A zero `target` sets no limit. `max_tokens` limits a whole step.
  PrefillPacer(absl::Duration target, int32_t max_tokens)
      : target_(absl::ToDoubleSeconds(target)), max_tokens_(max_tokens) {}

  // Records that a step with this many prompt tokens (recomputed ones included) and decodes took
  // `elapsed`.
  void NoteStep(int32_t prompt_tokens, int32_t decodes, absl::Duration elapsed);

  // The most prompt tokens with which a step of this many decodes ends within the target.
  int32_t limit(int32_t decodes) const;

 private:
  static constexpr int kNumPrices = 3;  // of a step, of a decode, of a prompt token
  using Vector = std::array<double, kNumPrices>;

  // This many are allowed whatever they cost; otherwise a prompt beside slow decodes might never be
  // computed.
  static constexpr int32_t kMinTokens = 8;

  const double target_;  // seconds; 0: no limit
  const int32_t max_tokens_;
  int64_t num_steps_ = 0;                         // noted
  Vector prices_ = {};                            // seconds; zero: no step seen yet
  std::array<Vector, kNumPrices> variance_ = {};  // of their logarithms' errors
};

}  // namespace quire::engine
