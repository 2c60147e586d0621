#include "tests/kernels/exact_product.h"

#include <algorithm>
#include <cmath>

#include "kernels/activation.h"

namespace quire::testing {

Exact ExactProduct(const TestWeight& weight, int64_t row, std::span<const Exact> a,
                   bool quantized) {
  const int64_t cols = weight.view.cols;
  const float* w = weight.values.data() + row * cols;
  Exact exact;
  double magnitude = 0.0;
  for (int64_t k = 0; k < cols; ++k) {
    exact.value += double{w[k]} * a[k].value;
    exact.bound += std::abs(double{w[k]}) * a[k].bound;
    magnitude += std::abs(double{w[k]}) * (std::abs(a[k].value) + a[k].bound);
  }
  if (quantized) {
    for (int64_t b = 0; b < cols; b += 32) {
      double absmax = 0.0, weights = 0.0;
      for (int64_t k = b; k < b + 32; ++k) {
        absmax = std::max(absmax, std::abs(a[k].value) + a[k].bound);
        weights += std::abs(double{w[k]});
      }
      exact.bound += absmax / 254 * 1.001 * weights;
      // The kernels compute the product of a block in two parts: the product with the block's
      // minimum and the product with its codes. The sum of the parts keeps the rounding errors of
      // both parts even if the parts cancel.
      magnitude += absmax * weights;
    }
  }
  exact.bound += static_cast<double>(cols) * kFloatEpsilon * magnitude * 4;
  return exact;
}

std::vector<Exact> ExactValues(std::span<const float> values) {
  std::vector<Exact> exact;
  for (const float value : values) exact.push_back({.value = double{value}});
  return exact;
}

Exact ExactSiluMul(const Exact& gate, const Exact& up) {
  const double silu = gate.value / (1.0 + std::exp(-gate.value));
  const double silu_bound = 1.1 * gate.bound + std::abs(gate.value) * 8 * kFloatEpsilon;
  return {
      .value = silu * up.value,
      .bound = silu_bound * (std::abs(up.value) + up.bound) + std::abs(silu) * up.bound + 1e-30};
}

Exact ExactClampedSiluMul(const Exact& gate, const Exact& up, double limit) {
  const double g = std::min(gate.value, limit), u = std::clamp(up.value, -limit, limit) + 1.0;
  const double silu = g / (1.0 + std::exp(-double{kernels::kClampedSiluAlpha} * g));
  const double silu_bound = 1.1 * gate.bound + std::abs(g) * 8 * kFloatEpsilon;
  const double up_bound = up.bound + std::abs(u) * kFloatEpsilon;
  return {.value = silu * u,
          .bound = silu_bound * (std::abs(u) + up_bound) + std::abs(silu) * up_bound + 1e-30};
}

}  // namespace quire::testing
