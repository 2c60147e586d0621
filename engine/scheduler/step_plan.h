#pragma once

// The sequences that run in a step, the tokens of each, and the tokens that they drew.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/sequence.h"
#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/shift_keys.h"

namespace quire::engine {

struct StepPlanEntry {
  Sequence* sequence = nullptr;  // the scheduler's; valid until this plan was completed
  int64_t first_index = 0;       // of this step's tokens in the sequence
  int64_t first_position = 0;    // its place in the cache; the others follow
  int32_t num_tokens = 0;        // query_len
  int32_t num_logit_rows = 0;    // the entry's last rows that need logits; 0 for a middle chunk
  int32_t num_samples = 0;  // tokens drawn from its last row: 0 in a middle chunk, 1 as a rule,
                            // n where the prompt of a request with n samples ends
  // The entry's only token was sampled by the previous step and is not on the host yet: index into
  // that step's SampledTokens::tokens. -1: every token is in sequence->tokens.
  int32_t token_from_previous = -1;
};

struct StepPlan {
  int64_t step = 0;
  std::vector<StepPlanEntry> entries;      // decodes first, then prefill chunks
  std::vector<kernels::BlockCopy> copies;  // run before the shifts
  std::vector<kernels::KeyShift> shifts;   // run before the step's KV writes
  int64_t num_tokens = 0;                  // sum over entries
  bool empty() const { return entries.empty(); }
};

struct SampledToken {
  int32_t id = 0;
  // Why the sequence ends with this token; decided by token stops, lengths and stop strings.
  FinishReason finish_reason = FinishReason::kNone;
  // Set only with kAbort: the token's row of logits was no distribution. Nothing that its sequence
  // computed may be shared.
  bool is_void = false;
};

// The tokens that a step drew: num_samples for each plan entry, in order.
struct SampledTokens {
  std::vector<SampledToken> tokens;
};

}  // namespace quire::engine
