// Compares the quantised activations of every ISA path with those of a plain loop that quantises
// one block at a time.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/kernel_table.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cpu {
namespace {

constexpr int64_t kBlocks = 37, kCols = 32 * kBlocks;
constexpr int8_t kUntouched = 99;

// The memory of one group of rows.
struct Group {
  std::vector<int8_t> q;
  std::vector<float> scale, scaled_sum;
  std::vector<int32_t> sums;
  int64_t places;

  explicit Group(int64_t group_rows)
      : q(static_cast<size_t>(group_rows * kCols), kUntouched),
        scale(static_cast<size_t>(group_rows * kBlocks), kUntouched),
        scaled_sum(scale),
        sums(2 * scale.size(), kUntouched),
        places(group_rows) {}
  QuantizedRows view() { return {q.data(), scale.data(), scaled_sum.data(), sums.data(), places}; }
};

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

void ExpectQuantized(const Group& group, int64_t block, int64_t row, const float* x) {
  float largest = 0.0f;
  for (int i = 0; i < 32 && !std::isnan(largest); ++i) {
    if (!(std::abs(x[i]) <= largest)) largest = std::abs(x[i]);
  }
  const float scale = largest / 127.0f, inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  const auto at = static_cast<size_t>(block * group.places + row);
  int32_t sums[2] = {};
  for (int i = 0; i < 32; ++i) {
    // A value that is not greater than -127 becomes -127. This includes NaN.
    const float scaled = x[i] * inverse;
    const int code =
        static_cast<int>(std::nearbyint(scaled > -127.0f ? std::min(scaled, 127.0f) : -127.0f));
    EXPECT_EQ(group.q[32 * at + static_cast<size_t>(i)], code) << "value " << i;
    sums[i / 16] += code;
  }
  EXPECT_TRUE(SameBits(group.scale[at], scale)) << group.scale[at] << " " << scale;
  const float scaled_sum = scale * static_cast<float>(sums[0] + sums[1]);
  EXPECT_TRUE(SameBits(group.scaled_sum[at], scaled_sum)) << scaled_sum;
  for (int half = 0; half < 2; ++half) {
    EXPECT_EQ(group.sums[static_cast<size_t>((2 * block + half) * group.places + row)], sums[half]);
  }
}

// Expects that nothing was written to `block`, which is not part of the work.
void ExpectUntouched(const Group& group, int64_t block) {
  for (int64_t i = block * group.places; i < (block + 1) * group.places; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(group.scale[at], kUntouched);
    EXPECT_EQ(group.scaled_sum[at], kUntouched);
    EXPECT_EQ(group.sums[2 * at], kUntouched);
    EXPECT_EQ(group.sums[2 * at + 1], kUntouched);
    EXPECT_EQ(std::count(&group.q[32 * at], &group.q[32 * at] + 32, kUntouched), 32);
  }
}

// Tests full and partly filled groups of rows. Tests numbers of blocks that fill all vector lanes
// or only some of them.
TEST(QuantizedRowsTest, ABlockHasItsBitsBesideAnyOthers) {
  for (const std::string& isa : testing::IsaPaths()) {
    const auto kernels = SelectKernels(isa);
    ASSERT_TRUE(kernels.ok());
    for (int64_t rows = 1; rows <= 16; ++rows) {
      std::vector<float> input = testing::Normal(static_cast<uint64_t>(rows), rows * kCols);
      float* last = input.data() + (rows - 1) * kCols;
      std::fill_n(last + 32, 32, 0.0f);
      last[2 * 32 + 5] = std::numeric_limits<float>::infinity();
      last[3 * 32 + 7] = std::numeric_limits<float>::quiet_NaN();
      for (const int64_t places : {1, 16}) {
        if (rows > places) continue;
        for (const int64_t first : {0, 2}) {
          for (const int64_t count : {1, 2, 3, 5, 7, 8, 9, 16, 17, 35}) {
            SCOPED_TRACE(::testing::Message() << isa << ", " << rows << " of " << places
                                              << " rows, " << count << " blocks from " << first);
            Group group(places);
            (*kernels)->quantize({.input = input.data(),
                                  .num_rows = rows,
                                  .cols = kCols,
                                  .first_block = first,
                                  .end_block = first + count,
                                  .out = group.view()});
            for (int64_t block = 0; block < kBlocks; ++block) {
              if (block < first || block >= first + count) {
                ExpectUntouched(group, block);
                continue;
              }
              for (int64_t row = 0; row < rows; ++row) {
                ExpectQuantized(group, block, row, input.data() + row * kCols + 32 * block);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels::cpu
