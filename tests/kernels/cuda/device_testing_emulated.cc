#include "kernels/cuda/emulator/emulated_device.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::testing {

namespace {

kernels::cuda::emulator::ThreadOrder OrderOf(ThreadOrder order) {
  switch (order) {
    case ThreadOrder::kForward:
      return kernels::cuda::emulator::ThreadOrder::kForward;
    case ThreadOrder::kReverse:
      return kernels::cuda::emulator::ThreadOrder::kReverse;
    case ThreadOrder::kRandom:
      return kernels::cuda::emulator::ThreadOrder::kRandom;
  }
  return {};
}

// Poison fills memory that nobody has written. The tests need both kinds of poison. NaN has no
// effect on a maximum, and a large number may cancel when a sum is divided by the sum of its
// weights. So kReverse uses large numbers, and the other orders use NaN.
kernels::cuda::emulator::Poison PoisonOf(ThreadOrder order) {
  return order == ThreadOrder::kReverse ? kernels::cuda::emulator::Poison::kLarge
                                        : kernels::cuda::emulator::Poison::kNaN;
}

}  // namespace

const double kE4M3SumRounding = 0x1p-24;

std::unique_ptr<kernels::cuda::Device> MakeDevice(ThreadOrder order, uint64_t seed) {
  return std::make_unique<kernels::cuda::emulator::EmulatedDevice>(
      kernels::cuda::emulator::EmulatorOptions{
          .execution = {.order = OrderOf(order), .seed = seed, .poison = PoisonOf(order)}});
}

}  // namespace quire::testing
