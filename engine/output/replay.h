#pragma once

// Brings the output of a resumed request to the token at which its stream broke.

#include "absl/status/status.h"

#include "engine/output/sample_output.h"
#include "engine/request/request.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

// One sample of a resumed request, after the tokens that were given.
struct ReplayedSample {
  SampleOutput output;
  // The first delta: the text that the tokens released and that did not arrive, and the end of the
  // sample if it has ended. It has no tokens and no log-probabilities, which arrived.
  TokenDelta delta;

  bool has_ended() const { return delta.finish_reason != FinishReason::kNone; }
};

// Pushes the tokens of `request.params.resume` through the output of each sample, as if they were
// drawn now, and sets `request.replayed`. Leaves it empty if no token is given, because then the
// request begins anew. The request has passed CheckResume and Frontend::Prepare. `tokenizer` must
// outlive the request. Takes time in proportion to the given tokens; a base::Interrupt of this
// thread cuts it short.
//
// Returns InvalidArgument if a token follows the end of its sample, or if more bytes of text are
// said to have arrived than the tokens release, or a part of a character.
absl::Status ReplayOutput(const text::Tokenizer& tokenizer, Request& request);

}  // namespace quire::engine
