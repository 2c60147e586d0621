#pragma once

// The tensor types of ggml by their number in a file: their sizes, and which of them kernels read.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/quant/weight_view.h"

namespace quire::files {

struct GgmlType {
  uint32_t id;
  std::string_view name;
  int block_elements;
  int block_bytes;
  std::optional<kernels::WeightType> weight_type;  // nothing: kernels do not read it
};

// Null for a number that ggml does not use, or no longer uses.
const GgmlType* FindGgmlType(uint32_t id);

// The entry of a type that kernels read.
const GgmlType& GgmlTypeOf(kernels::WeightType type);

// "F32, F16, ... Q6_K", for errors.
std::string SupportedGgmlTypes();

}  // namespace quire::files
