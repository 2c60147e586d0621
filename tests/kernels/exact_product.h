#pragma once

// Computes the product of a row in double, and a bound on the error of float arithmetic.

#include <cstdint>
#include <limits>
#include <span>

#include "tests/kernels/kernel_testing.h"

namespace quire::testing {

inline constexpr double kFloatEpsilon = std::numeric_limits<float>::epsilon();

struct Exact {
  double value = 0.0;
  double bound = 0.0;
};

// Returns row `row` of `weight` times `a`, whose elements have bounds of their own. Every product
// and sum rounds once; 4 * cols * kFloatEpsilon of the sum of magnitudes covers this. With
// `quantized`, each activation is also off by at most half a step of its block, absmax / 254.
Exact ExactProduct(const TestWeight& weight, int64_t row, std::span<const Exact> a, bool quantized);

std::vector<Exact> ExactValues(std::span<const float> values);

// Returns silu(gate) * up. The slope of silu is at most 1.1. The bound also counts the roundings of
// e^x, the quotient and the product.
Exact ExactSiluMul(const Exact& gate, const Exact& up);

}  // namespace quire::testing
