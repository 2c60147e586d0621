// Tests what tenants are charged: each held block is divided by the tenants that hold it.

#include "engine/kv/tenant_charges.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using Payer = TenantCharges::Payer;

class TenantChargesTest : public ::testing::Test {
 protected:
  // Holds blocks [0, num_blocks), as a request on a prefix of this length does.
  void Hold(Payer payer, int32_t num_blocks) {
    for (int32_t i = 0; i < num_blocks; ++i) charges_.Hold(i, payer);
  }
  void Drop(Payer payer, int32_t num_blocks) {
    for (int32_t i = num_blocks; i-- > 0;) charges_.Drop(i, payer);
  }

  TenantCharges charges_{16};
  const Payer a_ = charges_.Acquire("a");
  const Payer b_ = charges_.Acquire("b");
  const Payer c_ = charges_.Acquire("c");
};

TEST_F(TenantChargesTest, ALimitIsExceededByAnyPartOfABlock) {
  EXPECT_FALSE(TenantCharges::Exceeds(3.0, 3));
  EXPECT_FALSE(TenantCharges::Exceeds(9 * (1.0 / 3), 3)) << "however thirds are rounded";
  EXPECT_TRUE(TenantCharges::Exceeds(3.001, 3));
  EXPECT_FALSE(TenantCharges::Exceeds(2.999, 3));
}

TEST_F(TenantChargesTest, ABlockIsDividedByItsTenantsNotByTheirSequences) {
  Hold(a_, 6);
  Hold(a_, 6);
  EXPECT_EQ(charges_.Charge(a_), 6);
  Hold(b_, 6);
  Hold(b_, 6);
  Hold(b_, 6);
  EXPECT_EQ(charges_.Charge(a_), 3);
  EXPECT_EQ(charges_.Charge(b_), 3);
  Hold(c_, 6);
  EXPECT_EQ(charges_.Charge(c_), 2);
  Drop(b_, 6);
  EXPECT_EQ(charges_.Charge(b_), 2) << "two of its sequences are left";
  Drop(b_, 6);
  Drop(b_, 6);
  EXPECT_EQ(charges_.Charge(b_), 0);
  EXPECT_EQ(charges_.Charge(a_), 3);
}

TEST_F(TenantChargesTest, SomeOfAPayersBlocksHaveTheirPartOfItsCharge) {
  Hold(a_, 12);
  Hold(b_, 8);
  Hold(c_, 3);
  EXPECT_DOUBLE_EQ(charges_.ChargedFor(std::vector<int32_t>{0, 2, 3, 7, 8, 11}),
                   2.0 / 3 + 2.0 / 2 + 2);
  EXPECT_EQ(charges_.ChargedFor({}), 0);
  std::vector<int32_t> all(12);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_DOUBLE_EQ(charges_.ChargedFor(all), charges_.Charge(a_));
  Drop(c_, 3);
  Drop(b_, 8);
  EXPECT_EQ(charges_.ChargedFor(all), 12);
  Drop(a_, 12);
  EXPECT_EQ(charges_.ChargedFor(all), 0);
}

TEST_F(TenantChargesTest, BlocksWithTheSameHoldersAreOneSegment) {
  Hold(a_, 12);
  Hold(b_, 8);
  Hold(c_, 3);
  ASSERT_EQ(charges_.Segments().size(), 2u) << "the prefix of c splits that of b";
  EXPECT_EQ(charges_.Segments()[0].num_blocks, 5);
  EXPECT_EQ(charges_.Segments()[1].num_blocks, 3);
  EXPECT_EQ(charges_.Charge(a_), 4 + 5 / 2.0 + 3 / 3.0);
  EXPECT_EQ(charges_.Charge(b_), 5 / 2.0 + 3 / 3.0);
  Drop(a_, 12);
  EXPECT_EQ(charges_.Charge(b_), 5 + 3 / 2.0) << "a segment lives until its last user ends";
  Drop(b_, 8);
  EXPECT_EQ(charges_.Charge(c_), 3);
  Drop(c_, 3);
  EXPECT_TRUE(charges_.Segments().empty());
  EXPECT_TRUE(charges_.AllCharged().empty());
}

TEST_F(TenantChargesTest, ATenantIsKnownAsLongAsItHoldsBlocks) {
  const Payer d = charges_.Acquire("d");
  EXPECT_EQ(charges_.Acquire("d"), d);
  charges_.Release(d);
  charges_.Hold(0, d);
  charges_.Release(d);
  EXPECT_EQ(charges_.Charged("d"), 1) << "a prefix without requests";
  EXPECT_EQ(charges_.Acquire("d"), d);
  charges_.Release(d);
  charges_.Drop(0, d);
  EXPECT_EQ(charges_.Charged("d"), 0);
  EXPECT_EQ(charges_.Acquire("e"), d) << "its place is used again";
  charges_.Hold(1, TenantCharges::kNamelessPayer);
  EXPECT_EQ(charges_.AllCharged(), (std::map<std::string, double>{{"", 1}}));
}

TEST_F(TenantChargesTest, AnyThreadMayReadTheCharges) {
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      EXPECT_LE(charges_.Charged("b"), 16);
      EXPECT_LE(charges_.AllCharged().size(), 3u);
    }
  });
  Hold(a_, 16);
  for (int i = 0; i < 300; ++i) {
    Hold(b_, 8);
    charges_.Release(charges_.Acquire("d" + std::to_string(i)));
    Drop(b_, 8);
  }
  done = true;
  reader.join();
  EXPECT_EQ(charges_.Charged("a"), 16);
}

}  // namespace
}  // namespace quire::engine
