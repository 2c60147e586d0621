#include "gtest/gtest.h"

#include "base/check.h"
#include "kernels/cuda/device/cuda_device.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::testing {

namespace {

// Skips every test if there is no GPU, and gives the reason.
class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto device = kernels::cuda::CudaDevice::Create();
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
  }
};

[[maybe_unused]] ::testing::Environment* const needs_gpu =
    ::testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace

const double kE4M3SumRounding = 0x1p-14;

std::unique_ptr<kernels::cuda::Device> MakeDevice(ThreadOrder, uint64_t) {
  auto device = kernels::cuda::CudaDevice::Create();
  QUIRE_CHECK(device.ok()) << device.status().ToString();
  return std::move(*device);
}

}  // namespace quire::testing
