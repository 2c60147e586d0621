#include "kernels/sampling/gumbel.h"

#include <array>
#include <cstddef>

#include "base/reproducible_math.h"

namespace quire::kernels::sampling {
namespace {

constexpr double kTwoTo32 = 4294967296.0;
constexpr double kMinGumbel = -4.0;  // below every result of GumbelFromBits
constexpr int kStepsPerUnit = 16;
constexpr int kNumSteps = static_cast<int>((kMaxGumbel - kMinGumbel) * kStepsPerUnit) + 1;

// Returns the bounds of BitsThatMayReach. Entry s is for Gumbel variables from kMinGumbel + s /
// kStepsPerUnit up to the next step.
std::array<uint32_t, kNumSteps> MakeReach() {
  std::array<uint32_t, kNumSteps> reach;
  for (int step = 0; step < kNumSteps; ++step) {
    // The terms 1e-6 and 2.0 lower the bound. They cover the rounding errors of the exponentials
    // here and of the scores that callers compare.
    const double gumbel = kMinGumbel + static_cast<double>(step) / kStepsPerUnit - 1e-6;
    const double bits = base::Exp(-base::Exp(-gumbel)) * kTwoTo32 - 2.0;
    reach[static_cast<size_t>(step)] = bits > 0.0 ? static_cast<uint32_t>(bits) : 0;
  }
  return reach;
}

}  // namespace

double GumbelFromBits(uint32_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) / kTwoTo32;
  return -base::Log(-base::Log(u));
}

uint32_t BitsThatMayReach(double gumbel) {
  static const std::array<uint32_t, kNumSteps> reach = MakeReach();
  if (!(gumbel > kMinGumbel)) return 0;
  if (gumbel >= kMaxGumbel) return reach.back();
  return reach[static_cast<size_t>((gumbel - kMinGumbel) * kStepsPerUnit)];
}

}  // namespace quire::kernels::sampling
