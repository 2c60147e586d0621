// Tests which requests wait for the disk. A test does the work of the disk's thread itself, one
// block at a time, and each read takes as long as it says.

#include "engine/disk/disk_fetches.h"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "files/state_directory.h"
#include "tests/engine/disk/faulty_disk.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/temp_directory.h"

namespace quire::engine {
namespace {

class DiskFetchesTest : public ::testing::Test {
 protected:
  static constexpr int32_t kBlockSize = 16;
  static constexpr int64_t kBlockBytes = 256;
  static constexpr int32_t kNumBlocks = 128;
  static constexpr int64_t kPromptBlocks = 20;
  static constexpr int64_t kAllTokens = kPromptBlocks * kBlockSize;
  static constexpr char kRoot[] = "root";
  static constexpr absl::Duration kMs = absl::Milliseconds(1);

  explicit DiskFetchesTest(int64_t staging_bytes = DiskTierConfig().staging_bytes) {
    tier_ = *DiskTier::Open(*directory_, {.store = {.contents = "test",
                                                    .block_size = kBlockSize,
                                                    .block_bytes = kBlockBytes,
                                                    .max_bytes = 16 << 20},
                                          .blocks = memory_.data(),
                                          .num_blocks = kNumBlocks,
                                          .staging_bytes = staging_bytes,
                                          .clock = &clock_});
    blocks_.emplace(BlockManagerConfig{
        .num_blocks = kNumBlocks, .block_size = kBlockSize, .spill = &tier_->spill()});
    fetches_.emplace(*tier_, *blocks_, [this](int64_t n) { return n * compute_time_; });
    testing::Disk().on_read = [this] {
      ++num_reads_;
      clock_.Advance(read_time_);
    };
  }
  ~DiskFetchesTest() override {
    fetches_.reset();
    blocks_->CheckInvariants();
    EXPECT_EQ(blocks_->stats().num_held, 0);
  }

  // Returns a prompt of kPromptBlocks blocks and one more token, whose first `num_alike` blocks are
  // those of every prompt.
  static TokenIds PromptOf(int32_t number, int64_t num_alike = 0) {
    TokenIds tokens(kPromptBlocks * kBlockSize + 1);
    std::iota(tokens.begin(), tokens.end(), 0);
    for (size_t i = num_alike * kBlockSize; i < tokens.size(); ++i) tokens[i] += 1000 * number;
    return tokens;
  }
  void Start(SequenceId id, const TokenIds& tokens,
             TenantCharges::Payer payer = TenantCharges::kNamelessPayer) {
    blocks_->BeginStep(++step_);
    blocks_->StartSequence(id, kRoot, tokens, {.payer = payer});
    ASSERT_TRUE(blocks_->TryGrow(id, std::ssize(tokens)));
    blocks_->EndStep(true, &copies_, &shifts_);
    blocks_->CompleteStep(step_);
    blocks_->Commit(id, tokens, std::ssize(tokens));
  }
  // Computes the prompt, after which the disk has it and the cache has not.
  void WriteToDisk(const TokenIds& tokens) {
    Start(1, tokens);
    while (tier_->RunOne()) {
    }
    blocks_->Release(1);
    blocks_->FreeCached(kNumBlocks);
  }
  static std::shared_ptr<Request> RequestFor(const TokenIds& tokens) {
    auto request = std::make_shared<Request>();
    request->prompt_ids = tokens;
    return request;
  }
  bool TryWait(const std::shared_ptr<Request>& request) {
    return fetches_->TryWait(request, kRoot, ChainOf(*request), clock_.Now());
  }
  std::shared_ptr<const DiskChain> ChainOf(const Request& request) const {
    return tier_->LookUp(kRoot, tier_->epoch(), request.prompt_ids);
  }
  DiskFetches::Gain GainOf(const Request& request) {
    return fetches_->GainOf(request, kRoot, *ChainOf(request), clock_.Now());
  }
  std::vector<DiskFetches::Released> Advance() { return fetches_->Advance(clock_.Now()); }
  // Does all that is to be done. Returns the tokens that were read for those that waited.
  std::vector<int64_t> RunUntilIdle() {
    std::vector<int64_t> all;
    for (bool any = true; any;) {
      any = tier_->RunOne();
      for (const auto& released : Advance()) all.push_back(released.end - released.begin);
    }
    return all;
  }
  // Reads a prompt whose blocks take `read_time` each.
  void ReadOne(absl::Duration read_time) {
    read_time_ = read_time;
    WriteToDisk(PromptOf(99));
    const absl::Duration compute_time = std::exchange(compute_time_, absl::ZeroDuration());
    ASSERT_TRUE(TryWait(RequestFor(PromptOf(99))));
    RunUntilIdle();
    compute_time_ = compute_time;
    blocks_->FreeCached(kNumBlocks);
    num_reads_ = 0;
  }

  testing::HealsDisk heals_;
  testing::TempDirectory temp_;
  testing::FakeClock clock_;
  std::unique_ptr<files::StateDirectory> directory_ = *files::StateDirectory::Open(temp_.path());
  std::vector<std::byte> memory_ = std::vector<std::byte>(kNumBlocks * kBlockBytes);
  std::unique_ptr<DiskTier> tier_;
  std::optional<BlockManager> blocks_;
  absl::Duration compute_time_ = kMs;  // of a token: 16 ms a block
  absl::Duration read_time_;           // of a block
  std::optional<DiskFetches> fetches_;
  int64_t num_reads_ = 0;
  int64_t step_ = 0;
  std::vector<kernels::BlockCopy> copies_;
  std::vector<kernels::KeyShift> shifts_;
};

TEST_F(DiskFetchesTest, AFastDiskIsWaitedFor) {
  ReadOne(16 * kMs);
  WriteToDisk(PromptOf(1));
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1)))) << "as long as computing is not longer";
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{kAllTokens});
  EXPECT_EQ(num_reads_, kPromptBlocks);
}

TEST_F(DiskFetchesTest, ASlowDiskIsNotWaitedForUntilItIsTriedAgain) {
  ReadOne(17 * kMs);
  for (int32_t i = 1; i <= 3; ++i) WriteToDisk(PromptOf(i));
  EXPECT_FALSE(TryWait(RequestFor(PromptOf(1))));
  clock_.Advance(ReadPace::kTrialAfter);
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  EXPECT_FALSE(TryWait(RequestFor(PromptOf(2)))) << "one tries for all";
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{ReadPace::kTrialBlocks * kBlockSize});
  EXPECT_EQ(num_reads_, ReadPace::kTrialBlocks);
  EXPECT_FALSE(TryWait(RequestFor(PromptOf(2)))) << "it is as slow as before";

  read_time_ = 2 * kMs;
  clock_.Advance(ReadPace::kTrialAfter);
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(2))));
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{ReadPace::kTrialBlocks * kBlockSize});
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(3))));
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{kAllTokens});
}

TEST_F(DiskFetchesTest, ATrialMakesNoRequestLate) {
  ReadOne(100 * kMs);
  WriteToDisk(PromptOf(1));
  clock_.Advance(ReadPace::kTrialAfter);
  const auto request = RequestFor(PromptOf(1));
  const absl::Duration took = ReadPace::kTrialBlocks * 100 * kMs + (kAllTokens + 1) * kMs;
  request->deadline = clock_.Now() + took - absl::Nanoseconds(1);
  EXPECT_FALSE(TryWait(request));
  request->deadline = clock_.Now() + took;
  EXPECT_TRUE(TryWait(request));
  EXPECT_EQ(RunUntilIdle().size(), 1u);
}

TEST_F(DiskFetchesTest, AWaitEndsOnceTheDiskIsKnownToBeSlow) {
  WriteToDisk(PromptOf(1));
  read_time_ = 100 * kMs;
  num_reads_ = 0;
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1)))) << "nothing is known of it";
  for (int64_t i = 1; i < ReadPace::kLeastReads; ++i) {
    EXPECT_TRUE(tier_->RunOne());
    EXPECT_TRUE(Advance().empty()) << i << " reads say nothing";
  }
  EXPECT_TRUE(tier_->RunOne());
  const auto released = Advance();
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].end, released[0].begin);
  RunUntilIdle();
  EXPECT_EQ(num_reads_, ReadPace::kLeastReads) << "nobody wants the others";
}

// Blocks that were read are not lost by going on: the last blocks decide alone.
TEST_F(DiskFetchesTest, AWaitGoesOnWhereWhatIsLeftIsSooner) {
  WriteToDisk(PromptOf(1));
  compute_time_ = absl::ZeroDuration();
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  read_time_ = 100 * kMs;
  for (int64_t i = 0; i < kPromptBlocks - 3; ++i) EXPECT_TRUE(tier_->RunOne());
  compute_time_ = kMs;  // 320 ms for all, 300 ms for the three blocks that are left
  EXPECT_TRUE(Advance().empty());
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{kAllTokens});
}

TEST_F(DiskFetchesTest, WithoutATimeForComputingEveryDiskIsWaitedFor) {
  ReadOne(100 * kMs);
  WriteToDisk(PromptOf(1));
  compute_time_ = absl::ZeroDuration();
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{kAllTokens});
}

TEST_F(DiskFetchesTest, WhatIsReadBeforeCounts) {
  ReadOne(10 * kMs);
  for (int32_t i = 1; i <= 2; ++i) WriteToDisk(PromptOf(i));
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  const auto second = RequestFor(PromptOf(2));
  // 320 ms of computing are 32 blocks, and 40 are to be read.
  for (int i = 0; i < 8; ++i) {
    EXPECT_FALSE(TryWait(second)) << i;
    EXPECT_EQ(GainOf(*second).num_tokens, 0);
    EXPECT_TRUE(tier_->RunOne());
  }
  EXPECT_EQ(GainOf(*second).num_tokens, kAllTokens);
  EXPECT_EQ(GainOf(*second).time, 320 * kMs);
  EXPECT_TRUE(TryWait(second));
  EXPECT_EQ(RunUntilIdle(), (std::vector<int64_t>{kAllTokens, kAllTokens}));
}

TEST_F(DiskFetchesTest, WhatIsReadAfterDoesNotCount) {
  ReadOne(16 * kMs);
  for (int32_t i = 1; i <= 2; ++i) WriteToDisk(PromptOf(i));
  const absl::Duration compute_time = std::exchange(compute_time_, absl::ZeroDuration());
  const auto first = RequestFor(PromptOf(1)), second = RequestFor(PromptOf(2));
  ASSERT_TRUE(TryWait(first));
  ASSERT_TRUE(TryWait(second));
  compute_time_ = compute_time;  // 320 ms, in which 20 blocks of 40 are read
  const auto released = Advance();
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].request, second);
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{kAllTokens});
}

TEST_F(DiskFetchesTest, WhatTheFetchOfAnotherBringsIsReadOnce) {
  ReadOne(10 * kMs);
  for (int32_t i = 1; i <= 4; ++i) WriteToDisk(PromptOf(i, i == 4 ? 7 : 8));
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1, 8))));
  EXPECT_TRUE(TryWait(RequestFor(PromptOf(1, 8)))) << "20 blocks of the other's";
  EXPECT_TRUE(TryWait(RequestFor(PromptOf(2, 8)))) << "32: 12 of its own";
  EXPECT_EQ(GainOf(*RequestFor(PromptOf(3, 8))).time, 320 * kMs);
  EXPECT_FALSE(TryWait(RequestFor(PromptOf(4, 7)))) << "33";
  const std::vector<int64_t> read = RunUntilIdle();
  EXPECT_EQ(read, (std::vector<int64_t>{kAllTokens, 0, 12 * kBlockSize}));
}

// At 16 ms a block, 20 blocks are worth waiting for, and 21 are not.
TEST_F(DiskFetchesTest, AllThatTheFetchOfAnotherBringsIsReadOnce) {
  ReadOne(16 * kMs);
  WriteToDisk(PromptOf(1));
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  EXPECT_TRUE(TryWait(RequestFor(PromptOf(1))));
  EXPECT_EQ(RunUntilIdle(), (std::vector<int64_t>{kAllTokens, 0}));
}

TEST_F(DiskFetchesTest, ATrialBringsNoMoreThanItReads) {
  ReadOne(20 * kMs);
  WriteToDisk(PromptOf(1));
  clock_.Advance(ReadPace::kTrialAfter);
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  compute_time_ = 19 * 20 * kMs / kAllTokens;  // as long as 19 blocks take
  EXPECT_FALSE(TryWait(RequestFor(PromptOf(1)))) << "4 of the trial, and 16 after it";
  RunUntilIdle();
}

TEST_F(DiskFetchesTest, TheLastBlockOfAFetchIsJoined) {
  WriteToDisk(PromptOf(1));
  num_reads_ = 0;
  TokenIds two = PromptOf(1);
  two.resize(2 * kBlockSize + 1);
  ASSERT_TRUE(TryWait(RequestFor(two)));
  two.resize(kBlockSize + 1);
  Start(2, two);  // another computes the first block
  blocks_->Release(2);
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  EXPECT_EQ(RunUntilIdle(),
            (std::vector<int64_t>{2 * kBlockSize, (kPromptBlocks - 2) * kBlockSize}));
  EXPECT_EQ(num_reads_, kPromptBlocks) << "the second block is read once";
}

// The fetch of another brings 20 blocks, of which the cache has room for 10. To compute these takes
// as long as to read 19.
TEST_F(DiskFetchesTest, WhatTheFetchOfAnotherBringsBeyondItsOwnCounts) {
  ReadOne(160 * kMs / 19);
  WriteToDisk(PromptOf(1));
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  Start(2, TokenIds(static_cast<size_t>((kNumBlocks - 20) * kBlockSize), 7));
  ASSERT_EQ(blocks_->num_available(), 20);
  EXPECT_FALSE(TryWait(RequestFor(PromptOf(1))));
  blocks_->Release(2);
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{kAllTokens});
}

class OneByOneTest : public DiskFetchesTest {
 protected:
  OneByOneTest() : DiskFetchesTest(/*staging_bytes=*/1) {}  // each block is brought by itself
};

TEST_F(OneByOneTest, AFetchIsNotJoinedForABlockThatItHasBrought) {
  ReadOne(kMs);
  WriteToDisk(PromptOf(1));
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  while (blocks_->NumCached(kRoot, PromptOf(1)) == 0) {
    ASSERT_TRUE(tier_->RunOne());
    ASSERT_TRUE(Advance().empty());
  }
  EXPECT_EQ(GainOf(*RequestFor(PromptOf(1))).time, 19 * kMs);
  blocks_->FreeCached(kNumBlocks);
  EXPECT_EQ(GainOf(*RequestFor(PromptOf(1))).time, (19 + 20) * kMs);
  RunUntilIdle();
}

TEST_F(DiskFetchesTest, AFetchIsNotJoinedForTheBlockBehindItsLast) {
  WriteToDisk(PromptOf(1));
  num_reads_ = 0;
  TokenIds half = PromptOf(1);
  half.resize(10 * kBlockSize + 1);
  Start(2, TokenIds(static_cast<size_t>((kNumBlocks - 20) * kBlockSize), 7));
  const auto first = RequestFor(PromptOf(1));
  ASSERT_TRUE(TryWait(first)) << "for the 10 blocks for which there is room";
  blocks_->Release(2);
  Start(2, half);  // another computes these 10
  blocks_->Release(2);
  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  ASSERT_TRUE(fetches_->StopWaiting(*first, clock_.Now()));
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{10 * kBlockSize});
  EXPECT_EQ(num_reads_, 10) << "nobody waits for the first fetch";
}

TEST_F(DiskFetchesTest, OneBlockIsNotWaitedFor) {
  WriteToDisk(PromptOf(1));
  TokenIds tokens = PromptOf(1);
  tokens.resize(DiskFetches::kLeastBlocks * kBlockSize + 1);
  const TokenIds fewer(tokens.begin(), tokens.end() - kBlockSize);
  EXPECT_FALSE(TryWait(RequestFor(fewer)));
  ASSERT_TRUE(TryWait(RequestFor(tokens)));
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{DiskFetches::kLeastBlocks * kBlockSize});
}

// The first request joins the fetches of the others one by one: each brings two blocks that it
// lacks, and begins when the one before has ended.
TEST_F(DiskFetchesTest, ARequestTriesAFewTimes) {
  for (const int32_t num_others : {3, 4}) {
    blocks_->FreeCached(kNumBlocks);
    for (int32_t k = 0; k <= num_others; ++k) WriteToDisk(PromptOf(k, 2 * k));
    std::vector<int64_t> wanted;
    for (int32_t k = 1; k <= num_others; ++k) {
      ASSERT_TRUE(TryWait(RequestFor(PromptOf(k, 2 * k))));
      wanted.push_back((kPromptBlocks - 2 * (k - 1)) * kBlockSize);
    }
    ASSERT_TRUE(TryWait(RequestFor(PromptOf(0))));
    wanted.push_back(num_others == 3 ? (kPromptBlocks - 6) * kBlockSize : 0);
    EXPECT_EQ(RunUntilIdle(), wanted) << num_others << " others";
  }
}

TEST_F(DiskFetchesTest, AWaitEndsAtItsDeadlineAndInSilence) {
  WriteToDisk(PromptOf(1));
  const auto request = RequestFor(PromptOf(1));
  request->deadline = clock_.Now() + kMs;
  ASSERT_TRUE(TryWait(request));
  clock_.Advance(kMs - absl::Nanoseconds(1));
  EXPECT_TRUE(Advance().empty());
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(Advance().size(), 1u);
  RunUntilIdle();

  ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
  clock_.Advance(DiskFetches::kMostSilence - absl::Nanoseconds(1));
  EXPECT_TRUE(Advance().empty());
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(Advance().size(), 1u);
  RunUntilIdle();
}

TEST_F(DiskFetchesTest, WhatIsReadTakesHalfOfWhatIsFree) {
  for (const int32_t num_free : {2 * static_cast<int32_t>(kPromptBlocks), 39}) {
    WriteToDisk(PromptOf(1));
    ASSERT_TRUE(TryWait(RequestFor(PromptOf(1))));
    for (int64_t i = 0; i < kPromptBlocks; ++i) ASSERT_TRUE(tier_->RunOne());
    const TokenIds held(static_cast<size_t>((kNumBlocks - num_free) * kBlockSize), 7);
    Start(2, held);
    EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{num_free == 40 ? kAllTokens : 0});
    blocks_->Release(2);
    blocks_->FreeCached(kNumBlocks);
  }
}

TEST_F(DiskFetchesTest, SoManyFetchesAndNoMore) {
  WriteToDisk(PromptOf(1));
  const auto chain = ChainOf(*RequestFor(PromptOf(1)));
  constexpr auto kMost = static_cast<int64_t>(DiskTier::kMostFetches);
  const auto start = [&](int64_t id) {
    return tier_->StartFetch({.id = id, .chain = chain, .begin = 0, .end = kPromptBlocks});
  };
  for (int64_t id = 1; id <= kMost; ++id) EXPECT_TRUE(start(id)) << id;
  EXPECT_FALSE(start(kMost + 1));
  ASSERT_TRUE(tier_->RunOne());
  EXPECT_FALSE(start(kMost + 1)) << "the one that is read has not ended";
  tier_->EndFetch(kMost);
  EXPECT_TRUE(start(kMost + 1));
  EXPECT_FALSE(start(kMost + 2));
  for (int64_t id = 1; id <= kMost + 1; ++id) tier_->EndFetch(id);
  RunUntilIdle();
  EXPECT_TRUE(start(kMost + 3));
  tier_->EndFetch(kMost + 3);
  RunUntilIdle();
}

TEST_F(DiskFetchesTest, ATenantGetsNoMoreBlocksThanItMayHold) {
  WriteToDisk(PromptOf(1));
  const TenantCharges::Payer payer = blocks_->charges().Acquire("tenant");
  const auto request = RequestFor(PromptOf(1));
  request->params.sched.tenant = "tenant";
  for (const int32_t most : {1, static_cast<int32_t>(kPromptBlocks) - 1}) {
    request->params.limits.max_blocks = most;
    EXPECT_FALSE(TryWait(request)) << most;
  }
  EXPECT_EQ(GainOf(*request).num_tokens, 0);
  request->params.limits.max_blocks = kPromptBlocks;
  Start(2, TokenIds(1), payer);
  EXPECT_FALSE(TryWait(request)) << "it holds one already";
  blocks_->Release(2);
  EXPECT_TRUE(TryWait(request));
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{kAllTokens});
  blocks_->charges().Release(payer);
}

TEST_F(DiskFetchesTest, ATenantThatCameToItsQuotaMeanwhileWaitsNoLonger) {
  WriteToDisk(PromptOf(1));
  const TenantCharges::Payer payer = blocks_->charges().Acquire("tenant");
  const auto request = RequestFor(PromptOf(1));
  request->params.sched.tenant = "tenant";
  request->params.limits.max_blocks = kPromptBlocks;
  ASSERT_TRUE(TryWait(request));
  EXPECT_TRUE(tier_->RunOne());
  Start(2, TokenIds(1), payer);
  EXPECT_EQ(RunUntilIdle(), std::vector<int64_t>{0});
  EXPECT_EQ(blocks_->charges().Charged("tenant"), 1.0);
  EXPECT_EQ(fetches_->num_waiting(), 0);
  blocks_->Release(2);
  blocks_->charges().Release(payer);
}

}  // namespace
}  // namespace quire::engine
