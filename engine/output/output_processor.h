#pragma once

// Turns drawn tokens into deltas: text, stop strings, finish reasons.

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "engine/request/request.h"
#include "engine/request/sequence.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/token_stops.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

struct Output {
  // finish_reason is final, stop strings included, and is passed to the scheduler. The caller fills
  // in `usage`.
  TokenDelta delta;
  // False if the delta holds nothing and need not be sent.
  bool has_content = false;
};

// Keeps the unfinished text of each sequence.
//
//   text    The concatenated deltas of a sequence are the text of its tokens up to the earliest end
//           of a stop string, cut before that string (include_stop: after it), however the tokens
//           split it. Text is held back only while it could still become a stop string; nothing of
//           a stop string is ever sent. Strings that end within the first min_tokens tokens do not
//           stop. The text of a stop token is left out (include_stop: kept, but skip_special_tokens
//           still leaves out special ones). With echo the prompt's text comes first, in the first
//           delta; stop strings are not looked for in it. A character that begins in the prompt's
//           ids and ends in the output is sent whole.
//   ids     Sent with the delta of the token, though its text may come later or be cut; the token
//           that stopped it is the last. So are log-probabilities.
//
// Without OutputOptions::text nothing is detokenized unless there are stop strings to look for.
// Not thread-safe; lives on the step thread.
class OutputProcessor {
 public:
  explicit OutputProcessor(const text::Tokenizer& tokenizer);  // must outlive this
  ~OutputProcessor();

  // Adds the request's n samples, with ids first_id .. first_id + n - 1.
  void Add(SequenceId first_id, const std::shared_ptr<const Request>& request);

  // Takes a sequence's next token and the verdict on its id and the length. Not called again after
  // a finish reason.
  Output Push(SequenceId id, SampledRow drawn, const TokenVerdict& verdict);
  // Ends a sequence that gets no further token (kAbort). Returns its last delta, which has the text
  // that was held back.
  Output Cut(SequenceId id, FinishReason reason);

  // Forgets one sequence in any state, also one never pushed to.
  void Remove(SequenceId id);

  int64_t size() const { return static_cast<int64_t>(states_.size()); }

 private:
  struct State;
  State& Find(SequenceId id);
  TokenDelta NewDelta(State& state) const;

  const text::Tokenizer& tokenizer_;
  std::unordered_map<SequenceId, std::unique_ptr<State>> states_;
};

}  // namespace quire::engine
