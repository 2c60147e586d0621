#include "engine/scheduler/prefill_pacer.h"

#include <algorithm>

namespace quire::engine {
namespace {

// Believes bad news at once and good news by and by: one slow step must not be followed by another.
absl::Duration Blend(absl::Duration old, absl::Duration now) {
  return std::max(now, (3 * old + now) / 4);
}

}  // namespace

void PrefillPacer::NoteStep(int32_t prompt_tokens, int32_t decodes, absl::Duration elapsed) {
  if (prompt_tokens == 0) {
    decode_step_ = Blend(decode_step_, elapsed);
    return;
  }
  // What few tokens cost says little of many: a step has a price of its own.
  if (prompt_tokens < kMinTokens) return;
  if (decodes > 0) elapsed -= std::min(elapsed, decode_step_);
  per_token_ = Blend(per_token_, elapsed / prompt_tokens);
}

int32_t PrefillPacer::limit() const {
  if (target_ == absl::ZeroDuration() || per_token_ == absl::ZeroDuration()) return max_tokens_;
  const int64_t tokens = std::max(target_ - decode_step_, absl::ZeroDuration()) / per_token_;
  return static_cast<int32_t>(
      std::clamp<int64_t>(tokens, std::min(kMinTokens, max_tokens_), max_tokens_));
}

}  // namespace quire::engine
