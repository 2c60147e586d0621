#include "engine/disk/spill_queue.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

const std::vector<int32_t> kTokens = {1, 2, 3, 4};

class SpillQueueTest : public ::testing::Test {
 protected:
  bool Copy(const SpillQueue::Listing& listing) {
    return queue_.CopyIfListed(listing, [] {});
  }
  int num_first_ = 0;
  SpillQueue queue_{/*num_blocks=*/4096, /*block_size=*/4, [this] { ++num_first_; }};
  SpillQueue::Offered offered_;
};

TEST_F(SpillQueueTest, OffersComeInOrderWithTheirParents) {
  queue_.Offer(3, -1, "root", kTokens);
  queue_.Offer(5, 3, "root", kTokens);
  EXPECT_EQ(num_first_, 1);
  ASSERT_TRUE(queue_.Take(offered_));
  EXPECT_EQ(offered_.block.block, 3);
  EXPECT_EQ(offered_.parent.block, -1);
  EXPECT_EQ(offered_.root_key, "root");
  EXPECT_EQ(offered_.tokens, kTokens);
  EXPECT_TRUE(Copy(offered_.block));
  const uint64_t ticket = offered_.block.ticket;
  ASSERT_TRUE(queue_.Take(offered_));
  EXPECT_EQ(offered_.parent.block, 3);
  EXPECT_EQ(offered_.parent.ticket, ticket);
  EXPECT_TRUE(offered_.root_key.empty());
  EXPECT_FALSE(queue_.Take(offered_));
  queue_.Offer(6, 5, "root", kTokens);
  EXPECT_EQ(num_first_, 2);
}

TEST_F(SpillQueueTest, AWithdrawnBlockIsNotCopied) {
  queue_.Offer(3, -1, "root", kTokens);
  queue_.Withdraw(3);
  ASSERT_TRUE(queue_.Take(offered_));
  EXPECT_FALSE(Copy(offered_.block));
  queue_.Offer(3, -1, "other", kTokens);  // the block is listed anew
  EXPECT_FALSE(Copy(offered_.block)) << "the ticket is of the earlier listing";
  ASSERT_TRUE(queue_.Take(offered_));
  EXPECT_TRUE(Copy(offered_.block));
}

TEST_F(SpillQueueTest, AFullQueueDropsABlockAndWhatFollowsIt) {
  for (int32_t i = 0; i < static_cast<int32_t>(SpillQueue::kCapacity); ++i) {
    queue_.Offer(i, -1, "root", kTokens);
  }
  queue_.Offer(2000, -1, "root", kTokens);
  EXPECT_EQ(queue_.num_dropped(), 1);
  ASSERT_TRUE(queue_.Take(offered_));
  queue_.Offer(2001, 2000, "root", kTokens);
  EXPECT_EQ(queue_.num_dropped(), 2) << "its parent's key is not known";
  queue_.Offer(2001, 7, "root", kTokens);
  EXPECT_EQ(queue_.num_dropped(), 2);
}

// The number 0 is that of a block like others, and -1 that of none.
TEST_F(SpillQueueTest, ABlockMayFollowBlockZero) {
  queue_.Offer(5, 0, "root", kTokens);
  EXPECT_EQ(queue_.num_dropped(), 1) << "block 0 was not offered";
  queue_.Offer(0, -1, "root", kTokens);
  queue_.Offer(5, 0, "root", kTokens);
  EXPECT_EQ(queue_.num_dropped(), 1);
  ASSERT_TRUE(queue_.Take(offered_));
  const uint64_t ticket = offered_.block.ticket;
  ASSERT_TRUE(queue_.Take(offered_));
  EXPECT_EQ(offered_.parent.block, 0);
  EXPECT_EQ(offered_.parent.ticket, ticket);
  EXPECT_TRUE(offered_.root_key.empty());
}

TEST_F(SpillQueueTest, SoManyDiscardedListingsAreKeptAndNoMore) {
  for (int32_t i = 0; i <= static_cast<int32_t>(SpillQueue::kCapacity); ++i) {
    queue_.Offer(i, -1, "root", kTokens);
    ASSERT_TRUE(queue_.Take(offered_));
    queue_.Discard(i);
    EXPECT_FALSE(Copy(offered_.block)) << "it is withdrawn all the same";
  }
  EXPECT_EQ(queue_.TakeDiscarded().size(), SpillQueue::kCapacity);
}

TEST_F(SpillQueueTest, DiscardedListingsAreTold) {
  queue_.Offer(3, -1, "root", kTokens);
  ASSERT_TRUE(queue_.Take(offered_));
  queue_.Discard(3);
  queue_.Discard(9);  // was never offered
  const std::vector<SpillQueue::Listing> discarded = queue_.TakeDiscarded();
  ASSERT_EQ(discarded.size(), 1u);
  EXPECT_EQ(discarded[0].ticket, offered_.block.ticket);
  EXPECT_FALSE(Copy(offered_.block));
  EXPECT_TRUE(queue_.TakeDiscarded().empty());
}

// Under ThreadSanitizer, a copy during a write is an error.
TEST_F(SpillQueueTest, NoBlockIsWrittenWhileItIsCopied) {
  std::vector<std::vector<int32_t>> blocks(8, std::vector<int32_t>(256, 0));
  std::atomic<bool> stops = false;
  std::atomic<int> num_copied = 0;
  std::thread copier([&] {
    SpillQueue::Offered offered;
    std::vector<int32_t> copy;
    while (!stops) {
      if (!queue_.Take(offered)) continue;
      const auto block = static_cast<size_t>(offered.block.block);
      if (!queue_.CopyIfListed(offered.block, [&] { copy = blocks[block]; })) continue;
      ++num_copied;
      EXPECT_EQ(copy, std::vector<int32_t>(256, offered.tokens[0]));
    }
  });
  for (int32_t round = 1; round <= 2000; ++round) {
    const int32_t block = round % 8;
    queue_.Withdraw(block);
    std::ranges::fill(blocks[static_cast<size_t>(block)], round);
    queue_.Offer(block, -1, "root", std::vector<int32_t>(4, round));
    while (round % 16 == 0 && !queue_.empty()) std::this_thread::yield();
  }
  stops = true;
  copier.join();
  EXPECT_GT(num_copied, 0);
}

}  // namespace
}  // namespace quire::engine
