#pragma once

// The tensor types of ggml: the number of each type in a file, the size of its blocks, and the
// matching WeightType of the kernels.

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
  std::optional<kernels::WeightType> weight_type;  // nothing: kernels do not read this type
};

// Returns the type with the number `id`, or null if ggml does not use that number, or no longer
// uses it.
const GgmlType* FindGgmlType(uint32_t id);

// Returns the entry of a type that GGUF files have. E4m3 is none.
const GgmlType& GgmlTypeOf(kernels::WeightType type);

// Returns the names of the types that kernels read, for error messages: "F32, F16, ... Q6_K".
std::string SupportedGgmlTypes();

}  // namespace quire::files
