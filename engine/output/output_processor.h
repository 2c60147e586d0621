#pragma once

// Turns drawn tokens into deltas: text, stop strings, finish reasons.

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "engine/output/sample_output.h"
#include "engine/output/token_stops.h"
#include "engine/request/request.h"
#include "engine/request/sequence.h"
#include "kernels/ops/sample.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

// Keeps the unfinished text of each sequence.
//
//   text    The text of a sequence is the concatenation of its deltas. The first stop string to
//           end in the text of the tokens stops the sequence, however the tokens split the string.
//           The text is cut before the stop string (include_stop: after it). Text is held back only
//           while it could still become a stop string. Without include_stop, nothing of the string
//           that stops the sequence is ever sent. Special tokens that skip_special_tokens leaves
//           out are searched nevertheless: a stop string is found in the text with them and in the
//           text without them. Strings that end within the first min_tokens tokens do not stop the
//           sequence. The text of a stop token is left out (include_stop: kept, unless the token is
//           special and skip_special_tokens is set). With echo, the text of the prompt comes first,
//           in the first delta, and is not searched for stop strings. A character that begins in
//           the tokens of the prompt and ends in the output is sent whole.
//   ids     The id and the log-probabilities of a token are sent with the delta of that token. The
//           text of the token may come later or be cut. The token that stopped the sequence is the
//           last.
//
// Without OutputOptions::text nothing is detokenized unless there are stop strings to look for. Not
// thread-safe; used on the step thread only.
class OutputProcessor {
 public:
  explicit OutputProcessor(const text::Tokenizer& tokenizer);  // must outlive this
  ~OutputProcessor();

  // Adds the request's n samples, with ids first_id .. first_id + n - 1. Of a resumed request, adds
  // those that have not ended, as they are after the tokens that were given.
  void Add(SequenceId first_id, const std::shared_ptr<const Request>& request);

  // Takes the next token of a sequence, and the verdict of CheckTokenStops on it. Not called again
  // after a finish reason.
  Output Push(SequenceId id, kernels::SampledRow drawn, const TokenVerdict& verdict);
  // Ends a sequence that gets no further token (kAbort). Returns the last delta of the sequence,
  // which has the text that was held back.
  Output Cut(SequenceId id, FinishReason reason);

  // Returns the output of a sample whose tokens are known all at once. `verdict` is that on the
  // last token, which ends the sample.
  TokenDelta Whole(const Request& request, int32_t index, std::span<const int32_t> tokens,
                   const TokenVerdict& verdict) const;

  // Forgets one sequence, in any state, even if no token was pushed to it.
  void Remove(SequenceId id);

  int64_t size() const { return static_cast<int64_t>(states_.size()); }

 private:
  struct State {
    std::shared_ptr<const Request> request;
    SampleOutput output;
  };
  State& Find(SequenceId id);

  const text::Tokenizer& tokenizer_;
  std::unordered_map<SequenceId, State> states_;
};

}  // namespace quire::engine
