#pragma once

// Computes the dot product of a row of a weight and a vector in double. Also computes a bound on
// the error of the same product in float arithmetic.

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

// Returns the dot product of row `row` of `weight` and `a`. The bound includes the bounds of the
// elements of `a`. Every float product and every float sum rounds once: 4 * cols * kFloatEpsilon
// times the sum of the magnitudes covers these roundings. With `quantized`, rounding to codes
// changes each element of `a` by at most half a step. A step is 1/127 of the largest magnitude in a
// block of 32 elements.
Exact ExactProduct(const TestWeight& weight, int64_t row, std::span<const Exact> a, bool quantized);

std::vector<Exact> ExactValues(std::span<const float> values);

// Returns silu(gate) * up. The bound relies on the slope of silu, which is at most 1.1. The bound
// also counts the roundings of e^x, of the quotient and of the product.
Exact ExactSiluMul(const Exact& gate, const Exact& up);
// Returns the result of Activation::kClampedSiluMul. The slope along the gate is at most 1.1, as
// for silu. A clamp does not increase an error. The sum of `up` and 1 rounds once.
Exact ExactClampedSiluMul(const Exact& gate, const Exact& up, double limit);

}  // namespace quire::testing
