#pragma once

// What a stream has not written yet: one delta a sample, grown as more come.

#include <cstdint>
#include <vector>

#include "engine/request/token_delta.h"

namespace quire::server {

// Not thread-safe.
class DeltaBuffer {
 public:
  void Add(engine::TokenDelta delta);

  // Everything, one delta a sample, in the order of their first parts; the buffer is then empty.
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
