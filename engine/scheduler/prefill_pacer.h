#pragma once

// How much of a step prompts may take beside decodes, so that no stream waits long for its next
// token (stall-free batching, Sarathi-Serve, arXiv:2403.02310). What a token costs depends on the
// machine, the model and the depth of its context, so it is measured as steps run. The answer moves
// the borders of chunks, on which no output depends.

#include <cstdint>

#include "absl/time/time.h"

namespace quire::engine {

class PrefillPacer {
 public:
  // A zero `target` sets no limit. `max_tokens`: of a whole step.
  PrefillPacer(absl::Duration target, int32_t max_tokens)
      : target_(target), max_tokens_(max_tokens) {}

  // A step took `elapsed` with this many prompt tokens (recomputed ones are such) and decodes.
  void NoteStep(int32_t prompt_tokens, int32_t decodes, absl::Duration elapsed);

  // Most prompt tokens of a step that decodes too, for it to end within the target.
  int32_t limit() const;

 private:
  // So few go on whatever they cost, or a prompt beside slow decodes would never be computed.
  static constexpr int32_t kMinTokens = 8;

  const absl::Duration target_;
  const int32_t max_tokens_;
  absl::Duration decode_step_;  // a step of decodes alone; zero: none seen yet
  absl::Duration per_token_;    // of a prompt, beyond that; zero: none seen yet
};

}  // namespace quire::engine
