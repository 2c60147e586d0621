#pragma once

// Drawn tokens to deltas: text, stop strings, finish reasons.

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "engine/request/request.h"
#include "engine/request/sequence.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/token_stops.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire::engine {

struct Output {
  // finish_reason is the final word, stop strings included: what the scheduler is told. `usage` is
  // left to the caller.
  TokenDelta delta;
  // Whether the delta says anything; one that does not need not be put.
  bool has_content = false;
};

// Keeps what text each sequence has under way.
//
//   text    Concatenated, a sequence's deltas are the text of its tokens up to the earliest end of
//           a stop string, cut before that string (include_stop: behind it), however the tokens
//           split it. Text is held back while it could still become one, and not longer; nothing of
//           a stop string is ever sent. Strings that end within the first min_tokens tokens do not
//           stop. The text of a stop token is left out (include_stop: kept, though
//           skip_special_tokens leaves out special ones anyhow). With echo the prompt's text comes
//           first, in the first delta; stop strings are not looked for in it. A character that
//           prompt ids begin and the output completes comes whole.
//   ids     Sent with the delta of the token, though its text may come later or be cut; the token
//           that stopped it is the last. So are log-probabilities.
//
// Without OutputOptions::text nothing is detokenized unless there are stop strings to look for.
// Not thread-safe; lives on the step thread.
class OutputProcessor {
 public:
  explicit OutputProcessor(const Tokenizer& tokenizer);  // must outlive this
  ~OutputProcessor();

  // The request's n samples, with ids first_id .. first_id + n - 1.
  void Add(SequenceId first_id, const std::shared_ptr<const Request>& request);

  // The next token of a sequence and what its id and the length say. After a finish reason, no
  // more.
  Output Push(SequenceId id, SampledRow drawn, const TokenVerdict& verdict);
  // Ends a sequence without a further token (kAbort): its last delta, with the text held back.
  Output Cut(SequenceId id, FinishReason reason);

  // One sequence; in any state, also one never pushed to.
  void Remove(SequenceId id);

  int64_t size() const { return static_cast<int64_t>(states_.size()); }

 private:
  struct State;
  State& Find(SequenceId id);
  TokenDelta NewDelta(State& state) const;

  const Tokenizer& tokenizer_;
  std::unordered_map<SequenceId, std::unique_ptr<State>> states_;
};

}  // namespace quire::engine
