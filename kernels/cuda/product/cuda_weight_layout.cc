#include "kernels/cuda/product/cuda_weight_layout.h"

#include <algorithm>
#include <optional>

#include "base/math.h"
#include "kernels/cuda/product/fp8_weight.h"
#include "kernels/cuda/product/packed_weight.h"

namespace quire::kernels::cuda {
namespace {

constexpr int64_t kPartAlignment = 256;

struct Form {
  std::optional<WeightType> packed;
  GemmScales scales = GemmScales::kNone;
};

Form FormOf(const WeightView& view, bool packs, bool keeps_e4m3) {
  Form form;
  if (keeps_e4m3) form.scales = Fp8ScalesOf(view);
  if (form.scales != GemmScales::kNone) return form;
  if (packs && PackedGroupBytes(view.type, view.cols) > 0) form.packed = view.type;
  return form;
}

int64_t BytesOf(const WeightView& view, const Form& form, DType dtype) {
  if (form.packed) return NumGroups(view.rows) * PackedGroupBytes(view.type, view.cols);
  if (form.scales != GemmScales::kNone) return view.rows * view.cols;
  return view.rows * view.cols * SizeOf(dtype);
}

// Returns true if rows of this form can be added to the last part.
bool Continues(const CudaWeightPart& last, const Form& form) {
  if (last.packed != form.packed || last.scales != form.scales) return false;
  const int64_t group = form.packed ? kGroupRows : RowsOfScales(form.scales);
  return last.num_rows % group == 0;
}

// Gives the last part the place of its scales, if it has scales. They come after its codes.
void EndPart(int64_t cols, CudaWeightLayout& layout) {
  if (layout.parts.empty() || layout.parts.back().scales == GemmScales::kNone) return;
  CudaWeightPart& part = layout.parts.back();
  part.scales_offset = base::RoundUp(layout.bytes, kPartAlignment);
  layout.bytes = part.scales_offset +
                 part.num_rows / RowsOfScales(part.scales) * ScaleRowBytes(part.scales, cols);
}

// Returns where the scales of a view are that begins at `offset` in the part; 0 without scales.
int64_t ScalesOffset(const CudaWeightPart& part, int64_t offset, int64_t cols) {
  if (part.scales == GemmScales::kNone) return 0;
  const int64_t row = (offset - part.offset) / cols;
  return part.scales_offset + row / RowsOfScales(part.scales) * ScaleRowBytes(part.scales, cols);
}

}  // namespace

CudaWeightLayout LayOut(std::span<const WeightView> views, DType dtype, bool packs,
                        bool keeps_e4m3) {
  CudaWeightLayout layout;
  // cuBLASLt writes a part's products at multiples of 16 bytes, which are 8 elements of 16 bits.
  constexpr int64_t kOutputUnit = 8;
  keeps_e4m3 &= std::ranges::all_of(
      views, [](const WeightView& view) { return view.rows % kOutputUnit == 0; });
  std::vector<size_t> part_of_view;
  int64_t rows = 0;
  for (const WeightView& view : views) {
    const Form form = FormOf(view, packs, keeps_e4m3);
    const bool continues = !layout.parts.empty() && Continues(layout.parts.back(), form);
    if (!continues) {
      EndPart(views[0].cols, layout);
      layout.bytes = base::RoundUp(layout.bytes, kPartAlignment);
      layout.parts.push_back({.first_row = rows,
                              .offset = layout.bytes,
                              .packed = form.packed,
                              .scales = form.scales});
    }
    part_of_view.push_back(layout.parts.size() - 1);
    layout.offsets.push_back(layout.bytes);
    layout.is_packed.push_back(form.packed.has_value());
    layout.scales.push_back(form.scales);
    layout.bytes += BytesOf(view, form, dtype);
    layout.parts.back().num_rows += view.rows;
    rows += view.rows;
  }
  EndPart(views.empty() ? 0 : views[0].cols, layout);
  for (size_t i = 0; i < views.size(); ++i) {
    layout.scales_offsets.push_back(
        ScalesOffset(layout.parts[part_of_view[i]], layout.offsets[i], views[i].cols));
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
