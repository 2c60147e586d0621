#include "kernels/sampling/gumbel.h"

#include <array>
#include <cstddef>

#include "base/reproducible_math.h"

namespace quire::kernels::sampling {
namespace {

constexpr double kTwoTo32 = 4294967296.0;

// Returns the bounds of BitsThatMayReach. Entry s is for Gumbel variables from kMinGumbel + s /
// kReachStepsPerUnit up to the next step.
std::array<uint32_t, kNumReachSteps> MakeReach() {
  std::array<uint32_t, kNumReachSteps> reach;
  for (int step = 0; step < kNumReachSteps; ++step) {
    // The terms 1e-6 and 2.0 lower the bound. They cover the rounding errors of the exponentials
    // here and of the scores that callers compare.
    const double gumbel = kMinGumbel + static_cast<double>(step) / kReachStepsPerUnit - 1e-6;
    const double bits = base::Exp(-base::Exp(-gumbel)) * kTwoTo32 - 2.0;
    reach[static_cast<size_t>(step)] = bits > 0.0 ? static_cast<uint32_t>(bits) : 0;
  }
  return reach;
}

}  // namespace

std::span<const uint32_t, kNumReachSteps> ReachTable() {
  static const std::array<uint32_t, kNumReachSteps> reach = MakeReach();
  return reach;
}

uint32_t BitsThatMayReach(double gumbel) { return BitsThatMayReach(ReachTable().data(), gumbel); }

}  // namespace quire::kernels::sampling
