#pragma once

// The parameters for drawing tokens, and for stopping. Validate checks the ranges once.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "kernels/ops/sample.h"

namespace quire::engine {

using kernels::LogitBias;

inline constexpr int32_t kMaxBeamWidth = 32;

// Beam search, as transformers does it: see BeamParams of the proto.
struct BeamParams {
  // When the search ends although a beam could go on. All wait for `width` answers.
  enum class EarlyStopping : uint8_t {
    kHeuristic,  // when the best beam, at its present length, is not above the worst answer
    kAlways,
    kNever,  // when the best beam could not get above the worst answer at max_tokens either
  };
  int32_t width = 0;            // beams, 2..kMaxBeamWidth
  float length_penalty = 1.0f;  // -5..5
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;
  int32_t num_return = 1;  // answers, 1..width
};

// The temperature is at most 100, the repetition penalty at most 10, and the other two penalties
// and the biases are -2..2 and -100..100.
struct SamplingParams : kernels::DrawParams {
  std::optional<uint64_t> seed;  // absent: drawn at admission and reported
  int32_t n = 1;                 // samples of one prompt, 1..64; sample k uses seed + k
  // n..64: draws so many samples, and answers with the n whose tokens have the highest mean
  // log-probability, best first. Absent: n, in order.
  std::optional<int32_t> best_of;
  std::optional<BeamParams> beam;          // absent: tokens are drawn
  std::vector<LogitBias> logit_bias;       // at most kernels::kMostBiases
  std::vector<int32_t> allowed_token_ids;  // empty: all; at most as many as the vocabulary has

  // Returns the number of samples that are drawn. A beam search counts as one.
  int32_t num_samples() const { return std::max(n, best_of.value_or(n)); }
  // Returns the number of sequences that run side by side.
  int32_t num_sequences() const { return beam ? beam->width : num_samples(); }
};

struct StopParams {
  std::optional<int32_t> max_tokens;  // generated tokens; absent: up to the end of the context
  int32_t min_tokens = 0;             // until then, tokens that would end the output are not drawn
  std::vector<std::string> stop;      // strings, at most 16, each 1..256 bytes
  std::vector<int32_t> stop_token_ids;  // at most as many as the vocabulary has
  bool include_stop = false;            // keep the stop string or token in the output
  bool ignore_eos = false;              // do not stop at the model's own end tokens

  // Returns true if min_tokens forbids that the next token ends the sequence. `num_generated` does
  // not include the next token.
  bool must_go_on(int64_t num_generated) const { return num_generated < min_tokens; }
};

// What a request's bounds and defaults became at admission. A resumed request has them from the
// stream that broke.
struct ResolvedParams {
  int32_t max_tokens = 0;
  SamplingParams sampling;  // without logit_bias and allowed_token_ids; seed is set
};

struct OutputOptions {
  bool text = true;
  bool token_ids = false;
  // 0..20: logprobs of the drawn token and of this many best tokens.
  std::optional<int32_t> top_logprobs;
  std::optional<int32_t> prompt_logprobs;  // 0..20; implies CacheParams::bypass_read
  bool echo = false;                       // the output begins with the prompt's text
  bool usage_per_chunk = false;
  bool skip_special_tokens = true;
  bool logprob_text = false;  // PositionLogprobs::rank is filled; the server adds the tokens' bytes
  bool resumable = false;     // a delta without content, but with the seed, is sent at admission
};

struct CacheParams {
  // Requests share cached prefixes only with requests of equal tenant, part and salt.
  std::string part;  // a subdivision of the tenant
  std::string salt;
  bool bypass_read = false;
  bool bypass_write = false;
  // The cache keeps the first sink_tokens tokens and about the last window_tokens tokens, and drops
  // the tokens between them; see CacheWindow. If window_tokens is 0, all tokens stay.
  int32_t sink_tokens = 0;
  int32_t window_tokens = 0;
};

struct SchedParams {
  int32_t priority = 0;  // -100..100; larger is served first
  std::string tenant;    // each tenant has its own cached prefixes and TenantLimits
};

// Returns InvalidArgument if a value is not allowed. The message begins with the field's name, as
// in "sampling.top_p: want (0, 1], got 1.5".
absl::Status Validate(const SamplingParams& sampling, const StopParams& stop,
                      const OutputOptions& output, const CacheParams& cache,
                      const SchedParams& sched, int32_t vocab_size);

}  // namespace quire::engine
