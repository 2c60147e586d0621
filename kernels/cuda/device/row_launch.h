#pragma once

// The host side of kernels that process rows. It selects the instance of the kernel template and
// the number of threads.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/device/element_types.h"
#include "kernels/cuda/device/rows.cuh"
#include "kernels/dtype.h"
#include "kernels/ops/check.h"
#include "kernels/tensor_view.h"

namespace quire::kernels::cuda {

// Calls f with a value of the element type that kernels use for `dtype`: f32, f16 or bf16.
template <typename F>
absl::Status WithElementType(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kF16:
      return f(F16{});
    case DType::kBF16:
      return f(Bf16{});
    default:
      return WantGot("dtype", "f32|f16|bf16", Name(dtype));
  }
}

// The same for the dtype of a KV cache, which may also be fp8_e4m3.
template <typename F>
absl::Status WithCacheType(DType dtype, F f) {
  return dtype == DType::kF8E4M3 ? f(E4M3{}) : WithElementType(dtype, f);
}

// Calls f with a constant: the number of elements that a thread moves at once. It is the number
// that fills 16 bytes if `cols` is a multiple of that number, else 1.
template <typename T, typename F>
absl::Status WithVectorOf(int64_t cols, F f) {
  constexpr int kVector = 16 / sizeof(T);
  if (cols % kVector == 0) return f(std::integral_constant<int, kVector>{});
  return f(std::integral_constant<int, 1>{});
}

// Checks that the memory of each tensor starts at a multiple of 16 bytes, as access in 16-byte
// vectors requires. Absent tensors pass.
inline absl::Status CheckAligned(
    std::initializer_list<std::pair<std::string_view, const TensorView*>> tensors) {
  for (const auto& [what, tensor] : tensors) {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(tensor->raw()) % 16;
    if (offset == 0) continue;
    return WantGot(what, "memory at a multiple of 16 bytes", absl::StrCat(offset, " past one"));
  }
  return absl::OkStatus();
}

// Returns the number of threads for one row, in whole warps. The number decides the order in which
// a kernel sums the row. It depends only on the length and the element type of the row.
inline unsigned RowThreads(int64_t cols, int elements_per_thread) {
  const int64_t threads = (cols / elements_per_thread + 31) / 32 * 32;
  return static_cast<unsigned>(std::clamp<int64_t>(threads, 32, kMaxRowThreads));
}

}  // namespace quire::kernels::cuda
