#pragma once

// Collects the deltas of a request until they are sent. Merges the deltas of each sample into one.

#include <cstdint>
#include <vector>

#include "engine/request/token_delta.h"

namespace quire::engine {

// Not thread-safe.
class DeltaBuffer {
 public:
  void Add(TokenDelta delta);

  // Returns the buffer's contents, and empties the buffer. The result has one delta for each
  // sample, in the order in which the samples' first deltas were added.
  std::vector<TokenDelta> Take();

  // The number of deltas that were added since the last Take.
  int64_t num_deltas() const { return num_deltas_; }
  // The bytes of text, tokens and logprobs in the buffer.
  int64_t num_bytes() const { return num_bytes_; }
  bool empty() const { return merged_.empty(); }

 private:
  std::vector<TokenDelta> merged_;
  int64_t num_deltas_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace quire::engine
