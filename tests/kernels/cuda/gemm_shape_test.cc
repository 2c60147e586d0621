#include "kernels/cuda/device/gemm_shape.h"

#include <set>

#include "gtest/gtest.h"

#include "kernels/row_bucket.h"

namespace quire::kernels::cuda {
namespace {

TEST(GemmShapeTest, BucketsHoldTheirRowsAndAreFew) {
  std::set<int64_t> buckets;
  int64_t last = 0;
  for (int64_t m = 1; m <= 16384; ++m) {
    const int64_t bucket = RowBucket(m);
    ASSERT_GE(bucket, m);
    ASSERT_GE(bucket, last);
    ASSERT_EQ(RowBucket(bucket), bucket);
    // `m` is at least four fifths of the bucket.
    ASSERT_LT(5 * (bucket - m), bucket + 1) << m;
    buckets.insert(bucket);
    last = bucket;
  }
  EXPECT_EQ(buckets.size(), 4 * 13);  // buckets 1 to 4, then 4 for each of 12 doublings
  EXPECT_EQ(std::set<int64_t>(buckets.begin(), buckets.upper_bound(40)),
            (std::set<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40}));
}

TEST(GemmShapeTest, AlignmentIsThatOfTheAddress) {
  const auto at = [](uintptr_t address) { return AlignmentOf(reinterpret_cast<void*>(address)); };
  EXPECT_EQ(at(0x7000), 256u);
  EXPECT_EQ(at(0x7080), 16u);
  EXPECT_EQ(at(0x7010), 16u);
  EXPECT_EQ(at(0x7008), 8u);
  EXPECT_EQ(at(0x7004), 4u);
  EXPECT_EQ(at(0x7002), 2u);
}

// A row has 24 bf16 numbers, which are 48 bytes. So the address of every second row is not a
// multiple of 32.
TEST(GemmShapeTest, ShapesDifferByAlignment) {
  alignas(256) static char memory[512];
  const GemmArgs args{.d = memory,
                      .a = memory,
                      .b = memory,
                      .m = 3,
                      .n = 8,
                      .k = 24,
                      .lda = 24,
                      .ldb = 24,
                      .ldd = 8};
  GemmArgs second = args;
  second.a = memory + 48;
  EXPECT_EQ(ShapeOf(args), ShapeOf(args));
  EXPECT_NE(ShapeOf(args), ShapeOf(second));
  EXPECT_EQ(ShapeOf(second).a_alignment, 16u);
  EXPECT_EQ(ShapeOf(second).m, 3);
}

}  // namespace
}  // namespace quire::kernels::cuda
