#include "kernels/cache_view.h"

#include "absl/strings/str_cat.h"

#include "base/strings.h"

namespace quire::kernels {

CacheView::CacheView(void* data, DType dtype, int64_t num_blocks, int64_t num_kv_heads,
                     int64_t block_size, int64_t key_dim, int64_t value_dim, int64_t block_stride)
    : keys(data, dtype, {num_blocks, num_kv_heads, block_size, key_dim}) {
  const int64_t key_bytes = num_kv_heads * block_size * key_dim * SizeOf(dtype);
  values = TensorView(static_cast<char*>(data) + key_bytes, dtype,
                      {num_blocks, num_kv_heads, block_size, value_dim})
               .WithRowStride(block_stride);
  keys = keys.WithRowStride(block_stride);
}

CacheView::CacheView(const TensorView& both) : keys(both) {
  if (both.rank() != 5 || both.dim(1) != 2) return;
  *this = CacheView(both.raw(), both.dtype(), both.dim(0), both.dim(2), both.dim(3), both.dim(4),
                    both.dim(4), both.row_stride());
}

std::string CacheView::ToString() const {
  return absl::StrCat(base::ToAbsl(Name(dtype())), " [", num_blocks(), ", ", num_kv_heads(), ", ",
                      block_size(), ", ", key_dim(), "/", value_dim(), "]");
}

}  // namespace quire::kernels
