#include "kernels/cuda/cuda_weight_layout.h"

#include <algorithm>
#include <optional>

#include "base/math.h"
#include "kernels/cuda/packed_weight.h"

namespace quire::kernels::cuda {
namespace {

constexpr int64_t kPartAlignment = 256;

}  // namespace

CudaWeightLayout LayOut(std::span<const WeightView> views, DType dtype, bool packs) {
  CudaWeightLayout layout;
  int64_t rows = 0;
  for (const WeightView& view : views) {
    const int64_t group_bytes = packs ? PackedGroupBytes(view.type, view.cols) : 0;
    std::optional<WeightType> packed;
    if (group_bytes > 0) packed = view.type;
    const bool continues = !layout.parts.empty() && layout.parts.back().packed == packed &&
                           (!packed || layout.parts.back().num_rows % kGroupRows == 0);
    if (!continues) {
      layout.bytes = base::RoundUp(layout.bytes, kPartAlignment);
      layout.parts.push_back({.first_row = rows, .offset = layout.bytes, .packed = packed});
    }
    layout.offsets.push_back(layout.bytes);
    layout.is_packed.push_back(packed.has_value());
    layout.bytes +=
        packed ? NumGroups(view.rows) * group_bytes : view.rows * view.cols * SizeOf(dtype);
    layout.parts.back().num_rows += view.rows;
    rows += view.rows;
  }
  return layout;
}

bool CanPackExperts(std::span<const WeightView> views) {
  return std::ranges::all_of(views, [&](const WeightView& view) {
    return view.type == views[0].type && view.rows % kExpertRows == 0 &&
           PackedGroupBytes(view.type, view.cols) > 0;
  });
}

}  // namespace quire::kernels::cuda
