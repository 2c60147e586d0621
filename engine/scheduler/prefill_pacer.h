#pragma once

// Learns what steps cost, and limits the prompt tokens of a step that also has decodes, so that no
// stream waits long for its next token (stall-free batching, Sarathi-Serve, arXiv:2403.02310). The
// limit changes only the borders between chunks of prompts. No output depends on these borders.

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace quire::engine {

// The time of a step is modelled as the sum of a price for the step, a price for each decode and a
// price for each prompt token. The prices depend on the machine, the model and the length of
// contexts, so every step corrects them. The correction is an extended Kalman filter on the
// logarithms of the prices. Every price is assumed to drift. Logarithms keep prices above zero.
// They also let one rule fit machines whose prices are a thousand times apart. The variance of each
// price is bounded, because a long run of equal steps does not show how the three prices share
// their sum. Without the bound such a run would make prices ever more uncertain.
//
// After the first steps, one step raises no price by more than kMostUp and lowers none by more than
// kMostDown, however long the step takes. So a hiccup costs a third of the next step's prompt
// tokens and is forgotten within some steps. A wrong clock lengthens no step by more than a ninth.
class PrefillPacer {
 public:
  // `target` is the time in which a step should end. If `target` is zero, limit() always returns
  // `max_tokens`, the most tokens of a whole step.
  PrefillPacer(absl::Duration target, int32_t max_tokens)
      : target_(absl::ToDoubleSeconds(target)), max_tokens_(max_tokens) {}

  // Records that a step with this many prompt tokens (recomputed ones included) and decodes took
  // `elapsed`.
  void NoteStep(int32_t prompt_tokens, int32_t decodes, absl::Duration elapsed);

  // Returns the most prompt tokens that a step with `decodes` decodes may have if it is to end
  // within the target, but at least kMinTokens.
  int32_t limit(int32_t decodes) const;

  // Learns the prices of a step and of a decode: a step with one decode takes `one`, and one with
  // `decodes` of them, more than one, takes `together`.
  void NoteDecodes(absl::Duration one, int32_t decodes, absl::Duration together);

  // Returns the part of the time of a step with so many decodes, at least one, and no prompt tokens
  // that the price of one decode is, above 0 and at most 1.
  double DecodeShare(int32_t decodes) const;

  // Returns the time for this many prompt tokens, and then this many steps with one decode, if
  // nothing else runs. It is cautious: a slow step raises it little. Returns zero as long as no
  // step had half as many prompt tokens as the largest step for them has, because one token of a
  // small step says nothing about the price in a large one.
  absl::Duration LeastTime(int64_t prompt_tokens, int64_t decodes) const;

 private:
  static constexpr int kNumPrices = 3;  // the prices of a step, a decode and a prompt token
  using Vector = std::array<double, kNumPrices>;

  // This many prompt tokens are always allowed, whatever they cost. Otherwise a prompt beside slow
  // decodes might never be computed.
  static constexpr int32_t kMinTokens = 8;

  const double target_;  // seconds; 0: no limit
  const int32_t max_tokens_;
  int64_t num_steps_ = 0;                         // number of steps noted
  Vector prices_ = {};                            // seconds; zero: no step seen yet
  Vector calm_prices_ = {};                       // these rise by at most kMostCalmUp a step
  int32_t most_prompt_tokens_ = 0;                // of any step so far
  std::array<Vector, kNumPrices> variance_ = {};  // covariances of errors of log prices
};

}  // namespace quire::engine
