#pragma once

// Division of counts into parts.

namespace quire::base {

// Returns a / b rounded up, for a >= 0 and b > 0.
template <typename A, typename B>
constexpr auto CeilDiv(A a, B b) {
  return (a + b - 1) / b;
}

// Returns the smallest multiple of b that is at least a, for a >= 0 and b > 0.
template <typename A, typename B>
constexpr auto RoundUp(A a, B b) {
  return CeilDiv(a, b) * b;
}

}  // namespace quire::base
