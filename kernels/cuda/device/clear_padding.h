#pragma once

// Clears the padding of structs that are passed to kernels. The emulated device searches kernel
// parameters for addresses. Padding contains old bytes of the stack, which may look like an
// address.

#include <type_traits>

namespace quire::kernels::cuda {

#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding) && !defined(__CUDACC__)
#define QUIRE_CLEARS_PADDING 1
#endif
#endif

#if defined(QUIRE_CLEARS_PADDING)
inline constexpr bool kClearsPadding = true;
// Sets the padding of `value`, the bytes that belong to no member, to zero.
template <typename T>
void ClearPadding(T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  __builtin_clear_padding(&value);
}
#else
inline constexpr bool kClearsPadding = false;
template <typename T>
void ClearPadding(T&) {}
#endif

}  // namespace quire::kernels::cuda
