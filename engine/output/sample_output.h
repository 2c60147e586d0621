#pragma once

// The unfinished output of one sample: its text, and what of the text is held back.

#include <cstdint>
#include <memory>
#include <string>

#include "engine/output/stop_matcher.h"
#include "engine/output/token_stops.h"
#include "engine/request/request.h"
#include "kernels/ops/sample.h"
#include "text/tokenizer/incremental_detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

struct Output {
  // delta.finish_reason is final, since it accounts for stop strings too. The caller passes it to
  // the scheduler and fills in delta.usage.
  TokenDelta delta;
  // False if the delta holds nothing and need not be sent.
  bool has_content = false;
};

// Turns the tokens of one sample into deltas. OutputProcessor says what a delta has. Not
// thread-safe.
class SampleOutput {
 public:
  // Sample `index` of `request`, which the frontend has prepared. `patterns` are its stop strings.
  // `tokenizer` must outlive this.
  SampleOutput(const text::Tokenizer& tokenizer, std::shared_ptr<const StopPatterns> patterns,
               const Request& request, int32_t index);

  // Takes the next token, and the verdict of CheckTokenStops on it. Not called again after a finish
  // reason.
  Output Push(const Request& request, kernels::SampledRow drawn, const TokenVerdict& verdict);
  // Ends a sample that gets no further token. Returns the last delta, which has the text that was
  // held back.
  Output Cut(const Request& request, FinishReason reason);

  bool finished() const { return finished_; }

 private:
  TokenDelta NewDelta(const Request& request);
  // Adds the text of a token. Returns the index of the stop string that it completes, or -1.
  int32_t PushText(int32_t id, bool may_stop, std::string& released);

  int32_t index_;
  text::IncrementalDetokenizer detokenizer_;
  StopMatcher matcher_;
  int64_t num_tokens_ = 0;
  bool echo_pending_;
  bool finished_ = false;
};

}  // namespace quire::engine
