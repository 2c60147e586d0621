#pragma once

// The Validate functions of the ops share these checks. An error names the argument, the wanted
// value and the given value.

#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/activation.h"
#include "kernels/cache_view.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

constexpr int64_t kAnyDim = -1;

inline absl::Status WantGot(std::string_view what, std::string_view want, std::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat(base::ToAbsl(what), ": want ", base::ToAbsl(want), ", got ", base::ToAbsl(got)));
}

// Checks that `tensor` has one of `dtypes` and has `shape`. A dim of kAnyDim in `shape` accepts any
// size. Rows may be strided.
inline absl::Status CheckShape(std::string_view what, const TensorView& tensor,
                               std::initializer_list<DType> dtypes,
                               std::initializer_list<int64_t> shape) {
  bool good = !tensor.empty() && tensor.rank() == static_cast<int>(shape.size());
  bool known = false;
  std::string want;
  for (const DType dtype : dtypes) {
    known = known || tensor.dtype() == dtype;
    absl::StrAppend(&want, want.empty() ? "" : "|", base::ToAbsl(Name(dtype)));
  }
  good = good && known;
  absl::StrAppend(&want, " [");
  int i = 0;
  for (const int64_t dim : shape) {
    good = good && (dim == kAnyDim ? tensor.dim(i) >= 0 : tensor.dim(i) == dim);
    absl::StrAppend(&want, i == 0 ? "" : ", ", dim == kAnyDim ? "*" : absl::StrCat(dim));
    ++i;
  }
  if (good) return absl::OkStatus();
  return WantGot(what, want + "]", tensor.ToString());
}

inline absl::Status CheckTensor(std::string_view what, const TensorView& tensor,
                                std::initializer_list<DType> dtypes,
                                std::initializer_list<int64_t> shape) {
  RETURN_IF_ERROR(CheckShape(what, tensor, dtypes, shape));
  return tensor.contiguous() ? absl::OkStatus() : WantGot(what, "rows together", tensor.ToString());
}

inline absl::Status CheckActivations(std::string_view what, const TensorView& tensor,
                                     std::initializer_list<int64_t> shape) {
  return CheckTensor(what, tensor, {DType::kF32, DType::kF16, DType::kBF16}, shape);
}

inline absl::Status CheckKvCache(const CacheView& kv_cache, int64_t key_dim, int64_t value_dim) {
  const TensorView &keys = kv_cache.keys, &values = kv_cache.values;
  RETURN_IF_ERROR(CheckShape("keys of kv_cache", keys,
                             {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3},
                             {kAnyDim, kAnyDim, kAnyDim, key_dim}));
  RETURN_IF_ERROR(CheckShape("values of kv_cache", values, {keys.dtype()},
                             {keys.dim(0), keys.dim(1), keys.dim(2), value_dim}));
  if (values.row_stride() != keys.row_stride()) {
    return WantGot("values of kv_cache",
                   absl::StrCat("rows ", keys.row_stride(), " elements apart"),
                   absl::StrCat(values.row_stride()));
  }
  const bool has_scales = keys.dtype() == DType::kF8E4M3;
  const float least = has_scales ? CacheScales::kSmallest : 1.0f;
  const float most = has_scales ? CacheScales::kLargest : 1.0f;
  for (const float scale : {kv_cache.scales.k, kv_cache.scales.v}) {
    if (scale >= least && scale <= most) continue;
    return WantGot("scales of kv_cache",
                   has_scales ? absl::StrCat("numbers in [", least, ", ", most, "]")
                              : absl::StrCat("1 with ", base::ToAbsl(Name(keys.dtype()))),
                   absl::StrCat(scale));
  }
  if (kv_cache.key_norms.empty()) return absl::OkStatus();
  return CheckTensor("key_norms of kv_cache", kv_cache.key_norms, {DType::kF32}, {keys.dim(1)});
}

inline absl::Status CheckSameDType(std::string_view what, const TensorView& tensor,
                                   const TensorView& as) {
  if (tensor.dtype() == as.dtype()) return absl::OkStatus();
  return WantGot(what, Name(as.dtype()), Name(tensor.dtype()));
}

// Checks the limit of a clamped activation.
inline absl::Status CheckActivationLimit(Activation activation, float limit) {
  if (activation != Activation::kClampedSiluMul || limit > 0.0f) return absl::OkStatus();
  return WantGot("activation_limit", "more than 0", absl::StrCat(limit));
}

}  // namespace quire::kernels
