#pragma once

#include <cstdint>

namespace quire::kernels {

// A weight matrix in the layout that the ops of one backend read. Backend::PrepareWeight makes it.
// Only the ops of that backend read it.
class PreparedWeight {
 public:
  virtual ~PreparedWeight() = default;
  virtual int64_t rows() const = 0;  // outputs
  virtual int64_t cols() const = 0;  // inputs
  // The bytes of memory that the weight holds; 0 when the weight stays mapped from the file.
  virtual int64_t bytes() const = 0;
};

}  // namespace quire::kernels
