#pragma once

#include <cstdint>

namespace quire::kernels {

// A weight matrix in the form a backend computes with; made by Backend::PrepareWeight, read by the
// ops of that backend only.
class PreparedWeight {
 public:
  virtual ~PreparedWeight() = default;
  virtual int64_t rows() const = 0;  // outputs
  virtual int64_t cols() const = 0;  // inputs
  // Memory held; 0 for a weight that stays mapped from the file.
  virtual int64_t bytes() const = 0;
};

}  // namespace quire::kernels
