#pragma once

// One stream of tokens: sample k of a request.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"

#include "engine/request/request.h"

namespace quire::engine {

// The samples of one request have consecutive ids: first, first + 1, ... first + n - 1. The first
// computes the prompt; the others are forked from it when the prompt's last row is sampled.
using SequenceId = int64_t;

// Owned by the scheduler; step thread only. The members that each step reads are in the first line
// of a CPU cache.
struct alignas(64) Sequence {
  SequenceId id = 0;
  int32_t sample_index = 0;
  std::vector<int32_t> tokens;  // the prompt, then sampled tokens; committed ones only
  int64_t num_computed = 0;     // leading tokens whose K and V are in the cache
  std::shared_ptr<Request> request;

  int64_t num_cached = 0;      // prompt tokens taken from the prefix cache, not computed
  int64_t num_prefix = 0;      // those of num_cached that the named prefix has
  int64_t num_recomputed = 0;  // tokens computed again after preemptions
  int32_t num_preemptions = 0;
  int64_t num_copies = 0;  // of beam 0: blocks copied because the beams had shared them

  absl::Time first_scheduled = absl::InfinitePast();
  FinishReason finish_reason = FinishReason::kNone;

  int64_t prompt_len() const { return static_cast<int64_t>(request->prompt_ids.size()); }
  int64_t num_generated() const { return static_cast<int64_t>(tokens.size()) - prompt_len(); }
};

}  // namespace quire::engine
