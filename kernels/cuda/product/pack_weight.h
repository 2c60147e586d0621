#pragma once

// Writes weights in the packed form of packed_weight.h, on the host.

#include <cstddef>
#include <cstdint>

#include "kernels/quant/weight_view.h"

namespace quire::kernels::cuda {

// Packs rows [16 * group, 16 * group + 16) of `weight`, which must be valid and of a type with a
// packed form, into the PackedGroupBytes bytes at `out`.
void PackGroup(const WeightView& weight, int64_t group, std::byte* out);

}  // namespace quire::kernels::cuda
