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
  Sequence* sequence = nullptr;  // owned by the scheduler; valid until this plan is completed
  int64_t first_index = 0;       // the index of this step's first token in the sequence
  int64_t first_position = 0;    // the place of that token in the cache; other tokens follow
  int32_t num_tokens = 0;        // query_len; the last num_drafts of them are drafted
  int32_t num_logit_rows = 0;    // the number of last rows that need logits; may be 0
  // The number of tokens drawn from the entry's last row: 0 for a chunk before the sequence's last
  // token, n at the end of the prompt of a request with n samples or beams, otherwise 1.
  int32_t num_samples = 0;
  // The drafted tokens, StepPlan::drafts[first_draft, first_draft + num_drafts). They are guesses
  // at the tokens after the sequence's last. For each draft, a token is drawn from the row before
  // it. An entry with drafts has one sample.
  int32_t num_drafts = 0;
  int32_t first_draft = 0;
  // If the entry's only token was sampled by the previous step and is not on the host yet, this is
  // the token's index in SampledTokens::tokens of that step. -1: every token is in
  // sequence->tokens.
  int32_t token_from_previous = -1;

  // Returns the number of the entry's tokens that are the sequence's own, not drafted.
  int32_t num_own_tokens() const { return num_tokens - num_drafts; }
  // Returns the entry's number of elements of SampledTokens::tokens.
  int32_t num_draws() const { return num_samples + num_drafts; }
};

struct StepPlan {
  int64_t step = 0;
  std::vector<StepPlanEntry> entries;      // decodes first, then prefill chunks
  std::vector<int32_t> drafts;             // the drafted tokens of all entries
  std::vector<kernels::BlockCopy> copies;  // run before the shifts
  std::vector<kernels::KeyShift> shifts;   // run before the step's KV writes
  int64_t num_tokens = 0;                  // sum over entries
  bool empty() const { return entries.empty(); }
};

struct SampledToken {
  // The id of a token that was not drawn, because a drafted token before it was wrong or ended the
  // sequence.
  static constexpr int32_t kNotDrawn = -1;

  int32_t id = 0;
  // The reason if the sequence ends with this token. Token stops, lengths and stop strings are all
  // taken into account.
  FinishReason finish_reason = FinishReason::kNone;
  // True only with kAbort, if the token's row of logits was no probability distribution. Then
  // nothing that the sequence computed may be shared.
  bool is_void = false;
  // The beam whose tokens this token of a beam follows, and which is then a parent of itself. All
  // tokens of a request's beams have the same finish reason.
  int32_t parent = 0;
};

// The tokens that a step drew: num_draws() for each plan entry, in order. The tokens of an entry
// with drafts follow each other in the sequence; those after the last valid one are kNotDrawn.
struct SampledTokens {
  std::vector<SampledToken> tokens;
};

}  // namespace quire::engine
