#pragma once

// The output of a sequence, step by step, and the totals of a whole request.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "engine/request/sampling_params.h"
#include "kernels/ops/sample.h"

namespace quire::engine {

enum class FinishReason : uint8_t {
  kNone,    // the sequence goes on
  kStop,    // an end token, a stop token or a stop string
  kLength,  // max_tokens or the context's end
  kAbort,   // cancelled, aborted, past its deadline, stalled or failed
};

using kernels::PositionLogprobs;
using kernels::TokenLogprob;

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // generated in all samples, or scored in all continuations
  int64_t cached_tokens = 0;      // prompt tokens taken from the cache, not computed
  int64_t prefix_tokens = 0;      // those of cached_tokens that came from the named prefix
  int64_t disk_tokens = 0;        // those of cached_tokens that were read from disk for the request
  int64_t recomputed_tokens = 0;  // tokens computed again after preemptions
  int64_t num_preemptions = 0;
  int64_t block_copies = 0;    // blocks copied because beams had shared them
  int64_t resumed_tokens = 0;  // of completion_tokens: given by a resumed request, all samples
  // These two are of a session's turn. Tokens that the session had before and still has:
  int64_t kept_tokens = 0;
  // Tokens of the session that an earlier turn computed and this one computed again, because a
  // layer's window had dropped them, or they were evicted or not read:
  int64_t fork_recomputed_tokens = 0;

  Usage& operator+=(const Usage& other);
};

inline Usage& Usage::operator+=(const Usage& other) {
  prompt_tokens += other.prompt_tokens;
  completion_tokens += other.completion_tokens;
  cached_tokens += other.cached_tokens;
  prefix_tokens += other.prefix_tokens;
  disk_tokens += other.disk_tokens;
  recomputed_tokens += other.recomputed_tokens;
  num_preemptions += other.num_preemptions;
  block_copies += other.block_copies;
  resumed_tokens += other.resumed_tokens;
  kept_tokens += other.kept_tokens;
  fork_recomputed_tokens += other.fork_recomputed_tokens;
  return *this;
}

struct Timings {
  absl::Duration queue;    // arrival to first scheduled
  absl::Duration prefill;  // first scheduled to first token
  absl::Duration ttft;     // arrival to first token
  absl::Duration decode;   // first to last token
};

struct TokenDelta {
  int32_t index = 0;  // sample, 0..n-1
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;         // one per token of token_ids, when asked for
  std::vector<PositionLogprobs> prompt_logprobs;  // for prompt positions 1, 2, ..., chunk by chunk
  FinishReason finish_reason = FinishReason::kNone;
  std::string stop_string;  // the stop string that ended the sequence
  std::optional<int32_t> stop_token_id;
  uint64_t seed = 0;  // the seed of this sample
  // The score by which the sample was chosen, set in its last delta: with best_of, the mean
  // log-probability of the tokens; of a beam search, the score of the answer.
  std::optional<double> score;
  std::optional<Usage> usage;                      // when asked for per chunk
  std::shared_ptr<const ResolvedParams> resolved;  // in the first delta of a request
};

struct RequestSummary {
  Usage usage;
  Timings timings;
};

}  // namespace quire::engine
