#include "engine/request/shared_limit.h"

#include <string>

#include "gtest/gtest.h"

#include "base/strings.h"

namespace quire::engine {
namespace {

TEST(SharedLimitTest, WithoutOthersATenantMayTakeAll) {
  SharedLimit limit(5);
  EXPECT_EQ(limit.Room("a", {}), 5);
  EXPECT_TRUE(limit.Check("things", "a", {}, 5).ok());
  EXPECT_EQ(limit.Check("things", "a", {}, 6).code(), absl::StatusCode::kResourceExhausted);
  limit.Take("a", 5);
  EXPECT_EQ(limit.Room("a", {}), 0);
  EXPECT_EQ(base::ToStd(limit.Check("things", "a", {}, 1).message()),
            "things: want 1 more, the tenant has 5 and may take 0 now; all tenants together have 5 "
            "of at most 5: end some, or try later");
  limit.Take("a", 1);  // what is counted without a check
  EXPECT_EQ(limit.Room("a", {}), 0);
  limit.GiveBack("a", 6);
  EXPECT_EQ(limit.total(), 0);
}

// One after the other, or all at once: the tenant gets the same.
TEST(SharedLimitTest, ATenantMayTakeAsManyAsAreThenFree) {
  for (const int32_t share : {1, 2, 7, 100}) {
    for (int64_t most = 0; most <= 40; ++most) {
      const TenantLimits limits{.share = share, .has_others = true};
      SharedLimit one_by_one(most), at_once(most);
      int64_t num = 0;
      // The rule of the queue.
      while (num < share * (most - num)) {
        ASSERT_TRUE(one_by_one.Check("things", "a", limits, 1).ok()) << share << " " << most;
        one_by_one.Take("a", 1);
        ++num;
      }
      EXPECT_FALSE(one_by_one.Check("things", "a", limits, 1).ok()) << share << " " << most;
      EXPECT_EQ(at_once.Room("a", limits), num) << share << " " << most;
    }
  }
}

TEST(SharedLimitTest, NoTenantTakesAllAndEachGetsSome) {
  const TenantLimits limits{.has_others = true};
  SharedLimit limit(1000);
  for (bool any = true; any;) {
    any = false;
    for (const char* tenant : {"a", "b", "c"}) {
      if (!limit.Check("things", tenant, limits, 1).ok()) continue;
      limit.Take(tenant, 1);
      any = true;
    }
  }
  for (const char* tenant : {"a", "b", "c"}) EXPECT_EQ(limit.of(tenant), 250);
  EXPECT_EQ(limit.Room("d", limits), 125) << "a fourth one finds as many as it may have, halved";
  limit.GiveBack("a", 250);
  EXPECT_EQ(limit.of("a"), 0);
  EXPECT_EQ(limit.Room("b", limits), 125);
}

}  // namespace
}  // namespace quire::engine
