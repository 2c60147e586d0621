#pragma once

// The size of an answer that is one message. A client takes messages up to a size alone (gRPC's
// default is 4 MiB), and the server keeps the whole answer until it is read.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

#include "engine/request/request.h"
#include "engine/request/token_delta.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

// Returns the bytes that `delta` takes in the answer of a request with `params`, as protobuf writes
// it, but for a few bytes a sample. `tokenizer` has the bytes of tokens, for output.logprob_text.
int64_t AnswerBytes(const TokenDelta& delta, const GenerateParams& params,
                    const text::Tokenizer& tokenizer);

// Returns InvalidArgument if the answer has more than params.max_answer_bytes however its tokens
// come out. The request has been tokenized, and its lengths are resolved.
absl::Status CheckLeastAnswer(const Request& request);

// Returns ResourceExhausted for an answer of more than `max_bytes`, with the cure. A retry would
// end in the same way, so the status has no time for one.
absl::Status AnswerTooLarge(int64_t max_bytes, std::string_view cure);
// The same for the answer of a request with `params`.
absl::Status AnswerTooLarge(const GenerateParams& params);

}  // namespace quire::engine
