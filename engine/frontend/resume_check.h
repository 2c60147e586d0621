#pragma once

// Checks whether a request to resume a stream is well formed, and whether this server would go on
// with the same bits.

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "engine/request/request.h"

namespace quire::engine {

// Names of all that the bits of an engine's answers depend on.
struct AnswerIdentity {
  std::string model_digest;
  std::string numerics;
  // The reason why no stream can be resumed here. Empty if streams can be resumed.
  std::string no_resume;
};

// Checks params.resume, which is set. Frontend::Prepare checks the rest of `params`, and
// ReplayOutput the tokens and the text that were given.
//
// Returns InvalidArgument if the request scores, names no seed, digest or numerics, has not one
// entry for each sample, or a token is outside 0..vocab_size - 1. Returns FailedPrecondition, with
// both values, if model or numerics differ from `here`, or if nothing can be resumed here.
absl::Status CheckResume(const GenerateParams& params, const AnswerIdentity& here,
                         int32_t vocab_size);

}  // namespace quire::engine
