// Tests the whole path of a kernel: building its source, launching it on a device, and copying the
// result back.

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/launch.h"
#include "kernels/quant/float16.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/cuda/small_integers.h"
#include "tests/kernels/cuda/tile_product.cuh"

namespace quire::testing {
namespace {

class TileProductTest : public ::testing::TestWithParam<ThreadOrder> {};

TEST_P(TileProductTest, EqualsPlainLoops) {
  const int m = 37, n = 21, k = 80;
  const auto a = SmallIntegers<kernels::cuda::Bf16>(int64_t{m} * k, 1);
  const auto b = SmallIntegers<kernels::cuda::Bf16>(int64_t{n} * k, 2);
  std::vector<float> want(static_cast<size_t>(m * n));
  for (int row = 0; row < m; ++row) {
    for (int col = 0; col < n; ++col) {
      for (int i = 0; i < k; ++i) {
        want[static_cast<size_t>(row * n + col)] +=
            kernels::Bf16ToF32(a[static_cast<size_t>(row * k + i)].bits) *
            kernels::Bf16ToF32(b[static_cast<size_t>(col * k + i)].bits);
      }
    }
  }

  const auto device = MakeDevice(GetParam());
  DeviceArray<kernels::cuda::Bf16> device_a(*device, a), device_b(*device, b);
  DeviceArray<float> out(*device, m * n);
  const TileProductParams params = {device_a.data(), device_b.data(), out.data(), m, n, k};
  ASSERT_TRUE(kernels::cuda::Launch(
                  *device,
                  {.grid = {(m + kTileRows - 1) / kTileRows, (n + kTileCols - 1) / kTileCols},
                   .block = {32},
                   .shared_bytes = kTileSharedBytes},
                  &TileProductKernel, params)
                  .ok());
  EXPECT_EQ(out.ToHost(), want);
}

INSTANTIATE_TEST_SUITE_P(Orders, TileProductTest, ::testing::ValuesIn(kAllThreadOrders));

}  // namespace
}  // namespace quire::testing
