#pragma once

// The part of a stream that is not written yet: one delta for each sample, which grows as more
// arrive.

#include <cstdint>
#include <vector>

#include "engine/request/token_delta.h"

namespace quire::server {

// Not thread-safe.
class DeltaBuffer {
 public:
  void Add(engine::TokenDelta delta);

  // Returns everything, one delta for each sample, ordered by when its first part arrived. The
  // buffer is then empty.
  std::vector<engine::TokenDelta> Take();

  int64_t num_deltas() const { return num_deltas_; }  // as they were added
  int64_t num_bytes() const { return num_bytes_; }    // of their text, tokens and logprobs
  bool empty() const { return merged_.empty(); }

 private:
  std::vector<engine::TokenDelta> merged_;
  int64_t num_deltas_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace quire::server
