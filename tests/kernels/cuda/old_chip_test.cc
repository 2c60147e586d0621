// Tests that CudaBackend refuses a chip that cannot do what is asked. Only the emulator can pretend
// to be such a chip.

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

TEST(CudaBackendTest, RefusesProductsInE4M3WhereTheyCannotRun) {
  const auto error = [](int chip, const CudaBackendOptions& options) {
    return std::string(CreateCudaBackend(std::make_unique<emulator::EmulatedDevice>(
                                             emulator::EmulatorOptions{.compute_capability = chip}),
                                         options)
                           .status()
                           .message());
  };
  const CudaBackendOptions options = {.activation_dtype = DType::kBF16, .fp8_products = true};
  EXPECT_EQ(error(90, options), "");
  EXPECT_EQ(
      error(89, options),
      "cuda_experiments: want compute capability 9.0 for fp8_products, got 8.9; leave it out");
  EXPECT_EQ(
      error(100, options),
      "cuda_experiments: want compute capability 9.0 for fp8_products, got 10.0; leave it out");
  CudaBackendOptions other = options;
  other.activation_dtype = DType::kF32;
  EXPECT_EQ(error(90, other),
            "cuda_experiments: want activations in f16 or bf16 for fp8_products, got f32");
  other = options;
  other.deterministic = true;
  EXPECT_EQ(error(90, other), "cuda_experiments: want none with deterministic, got fp8_products");
}

}  // namespace
}  // namespace quire::kernels::cuda
