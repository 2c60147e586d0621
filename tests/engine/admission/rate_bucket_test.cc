#include "engine/admission/rate_bucket.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/request/retry_after.h"

namespace quire::engine {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::UnixEpoch();

TEST(RateBucketTest, AMinutesWorthMayBeTakenAtOnce) {
  RateBucket bucket;
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(bucket.Check("requests", 60, kStart).ok()) << i;
    bucket.Take(60, 1, kStart);
  }
  const absl::Status refused = bucket.Check("requests", 60, kStart);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("requests: "));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("60"));
}

TEST(RateBucketTest, WhoWaitsAsLongAsItIsToldIsNotRefused) {
  for (const int limit : {1, 7, 60, 1 << 20}) {
    RateBucket bucket;
    bucket.Take(limit, limit + 3.25, kStart);
    const auto wait = RetryAfter(bucket.Check("tokens", limit, kStart));
    ASSERT_TRUE(wait.has_value());
    EXPECT_TRUE(bucket.Check("tokens", limit, kStart + *wait).ok()) << limit;
    EXPECT_FALSE(bucket.Check("tokens", limit, kStart + *wait - absl::Milliseconds(3)).ok() &&
                 limit < 10000)
        << limit;
  }
}

TEST(RateBucketTest, ItFillsUpToItsLimitAndNoFurther) {
  RateBucket bucket;
  bucket.Take(60, 90, kStart);
  EXPECT_DOUBLE_EQ(bucket.Left(60, kStart), -30);
  EXPECT_DOUBLE_EQ(bucket.Left(60, kStart + absl::Seconds(45)), 15);
  EXPECT_DOUBLE_EQ(bucket.Left(60, kStart + absl::Hours(1)), 60);
  bucket.GiveBack(1000);
  EXPECT_DOUBLE_EQ(bucket.Left(60, kStart), 60);
  EXPECT_DOUBLE_EQ(bucket.Left(60, kStart - absl::Seconds(5)), 60);
}

TEST(RateBucketTest, ALimitMayChange) {
  RateBucket bucket;
  bucket.Take(60, 60, kStart);
  EXPECT_DOUBLE_EQ(bucket.Left(600, kStart + absl::Seconds(1)), 10);
  EXPECT_TRUE(std::isinf(bucket.Left(0, kStart)));
  EXPECT_TRUE(bucket.Check("tokens", 0, kStart).ok());
  bucket.Take(0, 5, kStart);  // without a limit nothing is owed
  EXPECT_DOUBLE_EQ(bucket.Left(60, kStart), 60);
}

}  // namespace
}  // namespace quire::engine
