// Tests that CudaBackend refuses a chip that is too old. Only the emulator can pretend to be such a
// chip.

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/emulated_device.h"

namespace quire::kernels::cuda {
namespace {

TEST(CudaBackendTest, RefusesOldChipsByName) {
  EXPECT_THAT(
      std::string(CreateCudaBackend(std::make_unique<emulator::EmulatedDevice>(
                                        emulator::EmulatorOptions{.compute_capability = 75}))
                      .status()
                      .message()),
      ::testing::HasSubstr("device: want compute capability 8.0 or later, got 7.5"));
}

}  // namespace
}  // namespace quire::kernels::cuda
