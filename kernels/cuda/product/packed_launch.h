#pragma once

// The host side of kernels that read packed weights. It selects the instance of the template.

#include "absl/status/status.h"

#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/product/packed_weight.h"
#include "kernels/quant/weight_view.h"

namespace quire::kernels::cuda {

// Calls f(an element, a WeightTypeConstant) for a packed weight, whose dtype has 16 bits.
template <typename F>
absl::Status WithPackedTypes(DType dtype, WeightType type, F f) {
  return WithElementType(dtype, [&](auto element) -> absl::Status {
    if constexpr (sizeof(element) == 2) {
      return WithPackedType(
          type, [&](auto constant) { return f(element, constant); },
          WantGot("weight", "a type with a packed form", Traits(type).name));
    } else {
      return WantGot("weight", "packed for f16|bf16", Name(dtype));
    }
  });
}

}  // namespace quire::kernels::cuda
