#include "engine/admission/cache_ledger.h"

#include <vector>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using Blocks = std::vector<int64_t>;

absl::Status Pin(CacheLedger& ledger, const Blocks& blocks) {
  return ledger.Pin("prefix", "", {}, blocks);
}

TEST(CacheLedgerTest, PinsUpToTheShare) {
  CacheLedger ledger({{.num_blocks = 100}}, 0.5);
  EXPECT_EQ(Pin(ledger, Blocks{51}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Pin(ledger, Blocks{30}).ok());
  EXPECT_EQ(Pin(ledger, Blocks{21}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Pin(ledger, Blocks{20}).ok());
  EXPECT_EQ(ledger.num_pinned(), 50);
  ledger.Unpin("", Blocks{30});
  EXPECT_EQ(ledger.num_pinned(), 20);
  EXPECT_TRUE(Pin(ledger, Blocks{30}).ok());
}

TEST(CacheLedgerTest, LeavesTheLargestNeed) {
  CacheLedger ledger({{.num_blocks = 100}}, 1.0);
  {
    const CacheLease small = *ledger.Admit(10, 0);
    const CacheLease large = *ledger.Admit(70, 0);
    EXPECT_EQ(Pin(ledger, Blocks{31}).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(Pin(ledger, Blocks{30}).ok());
  }
  EXPECT_TRUE(Pin(ledger, Blocks{70}).ok()) << "leases are given back";
}

TEST(CacheLedgerTest, AdmitsWhatPinsLeave) {
  CacheLedger ledger({{.num_blocks = 100}}, 0.5);
  ASSERT_TRUE(Pin(ledger, Blocks{40}).ok());
  EXPECT_EQ(ledger.Admit(61, 0).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ledger.Admit(60, 0).ok());
  EXPECT_TRUE(ledger.Admit(61, 1).ok()) << "a block of its prefix serves it";
}

TEST(CacheLedgerTest, AMovedLeaseIsOneLease) {
  CacheLedger ledger({{.num_blocks = 10}}, 1.0);
  CacheLease lease = *ledger.Admit(8, 0);
  CacheLease other;
  other = std::move(lease);
  EXPECT_FALSE(Pin(ledger, Blocks{3}).ok());
  other = CacheLease();
  EXPECT_TRUE(Pin(ledger, Blocks{3}).ok());
}

TEST(CacheLedgerTest, AWindowKeepsRoomForOneSequence) {
  CacheLedger ledger({{.num_blocks = 100}, {.num_blocks = 20, .for_one = 15}}, 0.5);
  EXPECT_EQ(Pin(ledger, Blocks{4, 6}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Pin(ledger, Blocks{4, 3}).ok());
  EXPECT_EQ(Pin(ledger, Blocks{4, 3}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ledger.num_pinned(), 4);
  EXPECT_TRUE(Pin(ledger, Blocks{4, 2}).ok());
}

TEST(CacheLedgerTest, ATenantOfSeveralLeavesRoomToTheOthers) {
  CacheLedger ledger({{.num_blocks = 200}, {.num_blocks = 40}}, 0.5);
  const TenantLimits limits{.has_others = true}, larger{.share = 3, .has_others = true};
  const auto code = [&](const char* tenant, const TenantLimits& of, const Blocks& blocks) {
    return ledger.Pin("prefix", tenant, of, blocks).code();
  };
  // 100 blocks may be pinned, and 20 of the window.
  EXPECT_EQ(code("a", limits, {51, 1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", limits, {1, 11}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", limits, {40, 10}), absl::StatusCode::kOk);
  EXPECT_EQ(code("a", limits, {11, 0}), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("a", limits, {1, 1}), absl::StatusCode::kResourceExhausted) << "of the window";
  EXPECT_EQ(code("a", limits, {10, 0}), absl::StatusCode::kOk);
  EXPECT_EQ(code("b", limits, {26, 0}), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("b", limits, {25, 5}), absl::StatusCode::kOk);
  EXPECT_EQ(code("c", larger, {19, 0}), absl::StatusCode::kOk) << "three quarters of 25";
  EXPECT_EQ(code("c", larger, {1, 0}), absl::StatusCode::kResourceExhausted);
  ledger.Unpin("a", Blocks{50, 10});
  EXPECT_EQ(ledger.num_pinned(), 44);
  EXPECT_EQ(code("d", limits, {28, 0}), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace quire::engine
