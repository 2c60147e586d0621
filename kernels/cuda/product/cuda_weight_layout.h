#pragma once

// Where the rows of a weight go in device memory.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/dtype.h"
#include "kernels/quant/weight_view.h"

namespace quire::kernels::cuda {

struct CudaWeightLayout {
  int64_t bytes = 0;
  std::vector<CudaWeightPart> parts;  // of the CudaWeight
  // For each view, where it is written, and in which form.
  std::vector<int64_t> offsets;
  std::vector<bool> is_packed;
  std::vector<GemmScales> scales;
  std::vector<int64_t> scales_offsets;  // where its scales are written, if it has any
};

// Returns the layout of `views`, which must be valid and have equal cols. With `packs`, views whose
// type has a packed form are packed, and others are of `dtype`. With `keeps_e4m3`, views for which
// Fp8ScalesOf (fp8_weight.h) finds scales are in e4m3 instead, if all views have rows in multiples
// of 8. Views of one form become one part
// where their rows are together: packed rows are in groups of 16, and scales may be for 128 rows,
// so such a view continues the one before it only if that ends with a whole group.
CudaWeightLayout LayOut(std::span<const WeightView> views, DType dtype, bool packs,
                        bool keeps_e4m3 = false);

// The rows of a view with packed experts are a multiple of this: two groups, as a block of their
// kernel has. A view may hold both gate and up, which then have a multiple of 16 each.
inline constexpr int64_t kExpertRows = 32;

// Returns true if the experts of a mixture can be packed. Their kernel wants matrices of one type,
// one after another.
bool CanPackExperts(std::span<const WeightView> views);

}  // namespace quire::kernels::cuda
