#pragma once

// The ranks of a tensor-parallel model. Each rank computes a part of every layer on a backend of
// its own.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

struct Rank {
  int32_t index = 0;  // [0, size)
  int32_t size = 1;
};

// Connects one rank with the others. Used by the thread that calls the rank's backend.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual Rank rank() const = 0;
  // Replaces `tensor`, after the ops that the rank's backend has enqueued, by the sum of the
  // tensors that the ranks pass in their calls of the same number. All ranks make the same calls
  // with equal shapes and dtypes, and get the same bits.
  virtual absl::Status AllReduceSum(const TensorView& tensor) = 0;
};

}  // namespace quire::kernels
