#include "engine/admission/cache_ledger.h"

#include <vector>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using Blocks = std::vector<int64_t>;

TEST(CacheLedgerTest, PinsUpToTheShare) {
  CacheLedger ledger({{.num_blocks = 100}}, 0.5);
  EXPECT_EQ(ledger.Pin(Blocks{51}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ledger.Pin(Blocks{30}).ok());
  EXPECT_EQ(ledger.Pin(Blocks{21}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ledger.Pin(Blocks{20}).ok());
  EXPECT_EQ(ledger.num_pinned(), 50);
  ledger.Unpin(Blocks{30});
  EXPECT_EQ(ledger.num_pinned(), 20);
  EXPECT_TRUE(ledger.Pin(Blocks{30}).ok());
}

TEST(CacheLedgerTest, LeavesTheLargestNeed) {
  CacheLedger ledger({{.num_blocks = 100}}, 1.0);
  {
    const CacheLease small = *ledger.Admit(10, 0);
    const CacheLease large = *ledger.Admit(70, 0);
    EXPECT_EQ(ledger.Pin(Blocks{31}).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(ledger.Pin(Blocks{30}).ok());
  }
  EXPECT_TRUE(ledger.Pin(Blocks{70}).ok()) << "leases are given back";
}

TEST(CacheLedgerTest, AdmitsWhatPinsLeave) {
  CacheLedger ledger({{.num_blocks = 100}}, 0.5);
  ASSERT_TRUE(ledger.Pin(Blocks{40}).ok());
  EXPECT_EQ(ledger.Admit(61, 0).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ledger.Admit(60, 0).ok());
  EXPECT_TRUE(ledger.Admit(61, 1).ok()) << "a block of its prefix serves it";
}

TEST(CacheLedgerTest, AMovedLeaseIsOneLease) {
  CacheLedger ledger({{.num_blocks = 10}}, 1.0);
  CacheLease lease = *ledger.Admit(8, 0);
  CacheLease other;
  other = std::move(lease);
  EXPECT_FALSE(ledger.Pin(Blocks{3}).ok());
  other = CacheLease();
  EXPECT_TRUE(ledger.Pin(Blocks{3}).ok());
}

TEST(CacheLedgerTest, AWindowKeepsRoomForOneSequence) {
  CacheLedger ledger({{.num_blocks = 100}, {.num_blocks = 20, .for_one = 15}}, 0.5);
  EXPECT_EQ(ledger.Pin(Blocks{4, 6}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ledger.Pin(Blocks{4, 3}).ok());
  EXPECT_EQ(ledger.Pin(Blocks{4, 3}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ledger.num_pinned(), 4);
  EXPECT_TRUE(ledger.Pin(Blocks{4, 2}).ok());
}

}  // namespace
}  // namespace quire::engine
