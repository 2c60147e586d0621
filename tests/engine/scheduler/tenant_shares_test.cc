#include "engine/scheduler/tenant_shares.h"

#include <string>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

TEST(TenantSharesTest, WhoComesBackIsLiftedToTheLeastServed) {
  TenantShares shares;
  const auto busy = shares.Enter("busy");
  const auto idle = shares.Enter("idle");
  shares.Leave(idle);
  shares.Charge(busy, 1000);
  EXPECT_EQ(shares.served(shares.Enter("idle")), 1000);
  EXPECT_EQ(shares.served(shares.Enter("new")), 1000);
}

TEST(TenantSharesTest, ALargerShareCountsLess) {
  TenantShares shares;
  const auto once = shares.Enter("once");
  const auto thrice = shares.Enter("thrice", 3);
  for (int i = 0; i < 30; ++i) shares.Charge(thrice, 1);
  shares.Charge(once, 10);
  EXPECT_NEAR(shares.served(thrice), shares.served(once), 1e-9);
}

TEST(TenantSharesTest, LeavingForAMomentForgetsNothing) {
  TenantShares shares;
  shares.Charge(shares.Enter("a"), 10);
  const auto b = shares.Enter("b");
  shares.Charge(b, 500);
  shares.Leave(b);
  EXPECT_EQ(shares.served(shares.Enter("b")), 510);  // "b" entered at 10
}

TEST(TenantSharesTest, WhoComesWhenAllHaveLeftBeginsWhereTheLastOneEnded) {
  TenantShares shares;
  const auto first = shares.Enter("first");
  const auto last = shares.Enter("last");
  shares.Charge(first, 900);
  shares.Charge(last, 500);
  shares.Leave(first);
  shares.Leave(last);
  EXPECT_EQ(shares.served(shares.Enter("new")), 500);
  EXPECT_EQ(shares.served(shares.Enter("last")), 500) << "as one that was always there";
}

TEST(TenantSharesTest, IdleTenantsAreBounded) {
  TenantShares shares;
  for (int i = 0; i < 10000; ++i) shares.Leave(shares.Enter(std::to_string(i)));
  EXPECT_LE(shares.num_known(), static_cast<int64_t>(TenantShares::kMaxIdle) + 1);
}

}  // namespace
}  // namespace quire::engine
