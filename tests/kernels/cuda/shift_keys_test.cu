// Tests ShiftKeys on CUDA against plain loops in three thread orders. The op moves cached keys to
// earlier positions.

#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/ops.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::DeviceFloats;
using testing::kAllThreadOrders;
using testing::kCacheTypes;
using testing::LargestRounding;
using testing::Normal;
using testing::ThreadOrder;

class ShiftKeysTest : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  const std::unique_ptr<Device> device_ = testing::MakeDevice(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Orders, ShiftKeysTest, ::testing::ValuesIn(kAllThreadOrders));

TEST_P(ShiftKeysTest, TurnsTheKeysOfItsBlocksAndNothingElse) {
  constexpr int64_t kKvHeads = 2, kRows = 6;
  constexpr float kTableScale = 1.25f;
  struct Case {
    int64_t head_dim, rope_dim, block_size;
    int32_t num_shifts;
  };
  // The first case has more shifts than one launch takes. In the second case, only a part of each
  // head is rotated. The third case has a cache block with more keys than one thread block rotates.
  for (const Case& c : {Case{8, 8, 4, 300}, Case{24, 16, 4, 2}, Case{128, 128, 16, 1}}) {
    for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kHalfSplit}) {
      for (const DType dtype : kCacheTypes) {
        const int64_t num_blocks = 2 * c.num_shifts + 1, half = c.rope_dim / 2;
        const int64_t keys = kKvHeads * c.block_size * c.head_dim, stride = 2 * keys + 16;
        DeviceFloats cache(*device_, dtype, Normal(1, num_blocks * stride));
        DeviceFloats table(*device_, DType::kF32, Normal(2, kRows * c.rope_dim));
        std::vector<KeyShift> shifts;
        for (int32_t i = 0; i < c.num_shifts; ++i) {
          shifts.push_back({.block = 2 * i + 1, .distance = i % static_cast<int32_t>(kRows)});
        }
        ASSERT_TRUE(
            ShiftKeys(*device_,
                      {.kv_cache = cache.View({num_blocks, 2, kKvHeads, c.block_size, c.head_dim})
                                       .WithRowStride(stride),
                       .rope_table = table.View({kRows, half, 2}),
                       .rope_layout = layout,
                       .table_scale = kTableScale,
                       .shifts = shifts})
                .ok());
        const std::vector<float> got = cache.ToHost();
        std::vector<bool> turned(got.size());
        for (const KeyShift& shift : shifts) {
          for (int64_t row = 0; row < kKvHeads * c.block_size; ++row) {
            const int64_t key = shift.block * stride + row * c.head_dim;
            for (int64_t i = 0; i < half; ++i) {
              const int64_t at_a = key + (layout == RopeLayout::kInterleaved ? 2 * i : i);
              const int64_t at_b =
                  key + (layout == RopeLayout::kInterleaved ? 2 * i + 1 : i + half);
              const float* const angle = table.values.data() + shift.distance * c.rope_dim + 2 * i;
              const double cos = angle[0] / kTableScale, sin = angle[1] / kTableScale;
              const double a = cache.values[at_a], b = cache.values[at_b];
              const double error =
                  3 * 0x1p-24 * (std::abs(a) + std::abs(b)) * (std::abs(cos) + std::abs(sin));
              const double x = a * cos + b * sin, y = b * cos - a * sin;
              ASSERT_NEAR(got[at_a], x, 1.01 * (error + LargestRounding(dtype, x)));
              ASSERT_NEAR(got[at_b], y, 1.01 * (error + LargestRounding(dtype, y)));
              turned[at_a] = turned[at_b] = true;
            }
          }
        }
        for (size_t i = 0; i < got.size(); ++i) {
          if (turned[i]) continue;
          ASSERT_EQ(got[i], cache.values[i]) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels::cuda
