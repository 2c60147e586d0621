#pragma once

// A row's product in double, and how far float arithmetic may be from it.

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

// Row `row` of `weight` times `a`, whose elements are known to their own bounds. Each of the
// products and sums rounds once, so cols * epsilon of the sum of magnitudes; and against quantised
// weights every activation is off by at most half a step, absmax / 254, of its block.
Exact ExactProduct(const TestWeight& weight, int64_t row, std::span<const Exact> a, bool quantized);

std::vector<Exact> ExactValues(std::span<const float> values);

// silu(gate) * up: silu's slope is at most 1.1; e^x, the quotient and the product round too.
Exact ExactSiluMul(const Exact& gate, const Exact& up);

}  // namespace quire::testing
