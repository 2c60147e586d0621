#include "engine/admission/tenant_meters.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/request/retry_after.h"

namespace quire::engine {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::UnixEpoch();

TEST(TenantMetersTest, RequestsBeyondTheLimitAreRefusedForThatTenantAlone) {
  TenantMeters meters;
  const TenantLimits limits{.requests_per_minute = 2};
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(meters.Charge("a", limits, 0, kStart).ok());
  const absl::Status refused = meters.Charge("a", limits, 0, kStart).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("requests_per_minute"));
  EXPECT_TRUE(meters.Charge("b", limits, 0, kStart).ok());
  EXPECT_TRUE(meters.Charge("a", limits, 0, kStart + *RetryAfter(refused)).ok());
  const TenantUsage usage = meters.Get("a", limits, kStart);
  EXPECT_EQ(usage.counts.requests, 3u);
  EXPECT_EQ(usage.counts.refused, 1u);
}

TEST(TenantMetersTest, TokensAreEstimatedAtFirstAndCorrectedAtTheEnd) {
  TenantMeters meters;
  const TenantLimits limits{.tokens_per_minute = 1000};
  const auto left = [&] { return meters.Get("a", limits, kStart).tokens_left; };
  TenantCharge charge = *meters.Charge("a", limits, 300, kStart);
  EXPECT_DOUBLE_EQ(left(), 700);
  EXPECT_EQ(meters.Get("a", limits, kStart).num_requests, 1);
  TenantCharge moved = std::move(charge);
  charge.Settle(5);  // NOLINT: an empty charge does nothing
  EXPECT_DOUBLE_EQ(left(), 700);
  moved.Settle(1300);
  moved.Settle(1300);
  EXPECT_DOUBLE_EQ(left(), -300);
  EXPECT_EQ(meters.Get("a", limits, kStart).counts.served_tokens, 1300u);
  EXPECT_EQ(meters.Get("a", limits, kStart).num_requests, 0);
  const absl::Status refused = meters.Charge("a", limits, 1, kStart).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("tokens_per_minute"));
  EXPECT_GT(*RetryAfter(refused), absl::Seconds(18));
}

TEST(TenantMetersTest, ARequestThatNeverRanOwesNoTokens) {
  TenantMeters meters;
  const TenantLimits limits{.requests_per_minute = 10, .tokens_per_minute = 1000};
  { const TenantCharge charge = *meters.Charge("a", limits, 400, kStart); }
  const TenantUsage usage = meters.Get("a", limits, kStart);
  EXPECT_DOUBLE_EQ(usage.tokens_left, 1000);
  EXPECT_DOUBLE_EQ(usage.requests_left, 9);
}

TEST(TenantMetersTest, TheFirstTenantsAreListedForEverAndOthersForgottenWhenIdle) {
  TenantMeters meters;
  const size_t num = TenantMeters::kMostLasting + 3 * TenantMeters::kMostIdle;
  std::vector<TenantCharge> busy;
  for (size_t i = 0; i < num; ++i) {
    TenantCharge charge = *meters.Charge(absl::StrCat("t", i), {}, 1, kStart);
    if (i == TenantMeters::kMostLasting) {
      busy.push_back(std::move(charge));
    } else {
      charge.Settle(2);
    }
  }
  const TenantUsages all = meters.GetAll(kStart);
  EXPECT_EQ(all.num_lasting, TenantMeters::kMostLasting);
  EXPECT_LE(all.tenants.size(), TenantMeters::kMostLasting + TenantMeters::kMostIdle + 1);
  uint64_t served = all.forgotten.served_tokens;
  bool has_busy = false;
  for (size_t i = 0; i < all.tenants.size(); ++i) {
    if (i < all.num_lasting) EXPECT_EQ(all.tenants[i].name, absl::StrCat("t", i));
    served += all.tenants[i].counts.served_tokens;
    has_busy = has_busy || all.tenants[i].num_requests == 1;
  }
  EXPECT_EQ(served, 2 * (num - 1));
  EXPECT_TRUE(has_busy);
  EXPECT_GT(all.forgotten.requests, 0u);
}

TEST(TenantMetersTest, ThreadsChargeAndSettleTogether) {
  TenantMeters meters;
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&meters] {
      for (int i = 0; i < kEach; ++i) {
        TenantCharge charge = *meters.Charge(absl::StrCat("t", i % 1500), {}, 1, kStart);
        charge.Settle(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const TenantUsages all = meters.GetAll(kStart);
  uint64_t served = all.forgotten.served_tokens;
  for (const TenantUsage& usage : all.tenants) served += usage.counts.served_tokens;
  EXPECT_EQ(served, uint64_t{kThreads} * kEach);
}

}  // namespace
}  // namespace quire::engine
