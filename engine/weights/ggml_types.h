#pragma once

// The tensor types of ggml by their number in a file: how large they are, and which we compute
// with.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/weight_view.h"

namespace quire::engine {

struct GgmlType {
  uint32_t id;
  std::string_view name;
  int block_elements;
  int block_bytes;
  std::optional<kernels::WeightType> weight_type;  // nothing: kernels do not read it
};

// Null for a number that ggml does not use, or gave up.
const GgmlType* FindGgmlType(uint32_t id);

// Of a type that we compute with.
const GgmlType& GgmlTypeOf(kernels::WeightType type);

// "F32, F16, ... Q6_K", for errors.
std::string SupportedGgmlTypes();

}  // namespace quire::engine
