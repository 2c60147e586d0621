#include "kernels/tensor_view.h"

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/strings.h"

namespace quire::kernels {

TensorView TensorView::WithRowStride(int64_t elements) const {
  QUIRE_CHECK(rank_ > 0 && elements >= RowElements())
      << "stride " << elements << " of " << ToString();
  TensorView strided = *this;
  strided.row_stride_ = elements;
  return strided;
}

TensorView TensorView::Rows(int64_t begin, int64_t count) const {
  QUIRE_CHECK(rank_ > 0 && begin >= 0 && count >= 0 && begin + count <= shape_[0])
      << "rows [" << begin << ", +" << count << ") of " << ToString();
  TensorView rows = *this;
  rows.data_ = static_cast<char*>(data_) + begin * row_stride_ * SizeOf(dtype_);
  rows.shape_[0] = count;
  return rows;
}

std::string TensorView::ToString() const {
  if (empty()) return "(absent)";
  std::string text = absl::StrCat(base::ToAbsl(Name(dtype_)), " [");
  for (int i = 0; i < rank_; ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", shape_[i]);
  text += "]";
  if (!contiguous()) absl::StrAppend(&text, " with rows ", row_stride_, " elements apart");
  return text;
}

}  // namespace quire::kernels
