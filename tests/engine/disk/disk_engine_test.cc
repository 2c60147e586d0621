// Tests engines whose K and V are kept on disk. A test drives the steps and the disk itself, or has
// threads where it says so. A copy of the directory, taken while the engine runs, is what a process
// that is killed at this moment leaves.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "engine/disk/segment_file.h"
#include "engine/load/kept_on_disk.h"
#include "engine/sharing/prefix_log.h"
#include "tests/engine/disk/faulty_disk.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/temp_directory.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::Disk;
using testing::EngineHarness;
using testing::ExpectSame;
using testing::FakeClock;
using testing::GreedyParams;
using testing::HarnessOptions;
using testing::RandomIds;

constexpr int32_t kBlockSize = 16;

class DiskEngineTest : public ::testing::Test {
 protected:
  void TearDown() override {
    testing::HealsDisk::Heal();
    engine_.reset();
  }

  void Start(HarnessOptions options = {}) {
    engine_.reset();  // which frees the directory
    options.block_size = kBlockSize;
    options.clock = &clock_;
    if (options.kv_disk_dir.empty()) options.kv_disk_dir = temp_.path();
    if (options.kv_disk_mib == 0) options.kv_disk_mib = 16;
    engine_ = EngineHarness::Stepped(options, &model_);
  }
  void RunUntilIdle() {
    for (bool any = true; any;) {
      any = engine_->RunFrontend();
      any = engine_->Step() || any;
    }
  }
  std::shared_ptr<CollectingSink> Submit(GenerateParams params) {
    auto sink = std::make_shared<CollectingSink>();
    auto handle = engine_->Submit(std::move(params), sink);
    EXPECT_TRUE(handle.ok()) << handle.status();
    if (handle.ok()) handles_.push_back(*std::move(handle));
    return sink;
  }
  std::shared_ptr<CollectingSink> Run(GenerateParams params) {
    const auto sink = Submit(std::move(params));
    RunUntilIdle();
    EXPECT_TRUE(sink->finished());
    EXPECT_TRUE(sink->status().ok()) << sink->status();
    // Blocks of named prefixes stay.
    if (engine_->stats().blocks_pinned == 0) {
      EXPECT_EQ(testing::WhatIsKept(engine_->stats()), "");
    }
    return sink;
  }
  static int64_t DiskTokens(const std::shared_ptr<CollectingSink>& sink) {
    return sink->summary().usage.disk_tokens;
  }
  void Damage(int64_t place) {
    for (const auto& file : std::filesystem::directory_iterator(temp_.path())) {
      if (SegmentFile::IdOf(file.path().filename().string()) == 0) continue;
      std::fstream bytes(file.path(), std::ios::binary | std::ios::in | std::ios::out);
      bytes.seekg(place);
      const int byte = bytes.get();
      bytes.seekp(place);
      bytes.put(static_cast<char>(byte ^ 1));
    }
  }

  testing::TempDirectory temp_;
  FakeClock clock_;
  testing::FakeModel* model_ = nullptr;
  std::unique_ptr<SteppedEngine> engine_;
  std::vector<std::shared_ptr<SubmittedRequest>> handles_;
};

TEST_F(DiskEngineTest, ThePromptOfAnEarlierRunIsReadFromDisk) {
  const GenerateParams params = GreedyParams(RandomIds(100, 1), 20);
  Start();
  const auto first = Run(params);
  EXPECT_EQ(DiskTokens(first), 0);
  EXPECT_GT(engine_->stats().disk.bytes, 0);

  Start();
  const auto second = Run(params);
  EXPECT_EQ(second->summary().usage.cached_tokens, 96);
  EXPECT_EQ(DiskTokens(second), 96);
  ExpectSame(second->sample(), first->sample());
  EXPECT_EQ(engine_->stats().disk.hits, 6);
  EXPECT_EQ(engine_->stats().prompt_tokens_computed, 4);
  EXPECT_EQ(DiskTokens(Run(params)), 0) << "now it is in memory";

  // So is what was generated: 119 tokens were computed, 112 of them in whole blocks.
  Start();
  GenerateParams longer = params;
  TokenIds ids = RandomIds(100, 1);
  const TokenIds answer = first->sample().token_ids;
  ids.insert(ids.end(), answer.begin(), answer.end());
  longer.prompt = ids;
  EXPECT_EQ(DiskTokens(Run(longer)), 112);
}

TEST_F(DiskEngineTest, EvictedBlocksComeBack) {
  Start({.num_blocks = 20});
  const GenerateParams params = GreedyParams(RandomIds(130, 1), 4);
  const auto first = Run(params);
  for (uint32_t i = 2; i < 6; ++i) Run(GreedyParams(RandomIds(200, i), 4));
  const auto second = Run(params);
  EXPECT_EQ(second->summary().usage.cached_tokens, 128);
  EXPECT_GE(DiskTokens(second), 2 * kBlockSize) << "the rest was still in memory";
  ExpectSame(second->sample(), first->sample());
}

TEST_F(DiskEngineTest, WhatIsPartlyInMemoryIsReadFromThere) {
  Start();
  TokenIds ids = RandomIds(200, 1);
  Run(GreedyParams(ids, 2));
  Start();
  Run(GreedyParams({ids.begin(), ids.begin() + 70}, 2));
  const auto sink = Run(GreedyParams(ids, 2));
  EXPECT_EQ(sink->summary().usage.cached_tokens, 192);
  EXPECT_EQ(DiskTokens(sink), 192 - 64);
}

TEST_F(DiskEngineTest, OthersFindNothing) {
  const GenerateParams params = GreedyParams(RandomIds(100, 1), 2);
  Start();
  Run(params);
  GenerateParams tenant = params, salt = params, part = params;
  tenant.sched.tenant = "other";
  salt.cache.salt = "other";
  part.cache.part = "other";
  for (const GenerateParams& other : {tenant, salt, part}) {
    Start();
    EXPECT_EQ(Run(other)->summary().usage.cached_tokens, 0);
  }
  Start();
  EXPECT_EQ(DiskTokens(Run(params)), 96) << "the others changed nothing";
  GenerateParams bypass = params;
  bypass.cache.bypass_read = true;
  Start();
  EXPECT_EQ(DiskTokens(Run(bypass)), 0);
  EXPECT_EQ(engine_->stats().disk.hits, 0);
}

TEST_F(DiskEngineTest, WhatAskedNotToBeCachedIsNotWritten) {
  GenerateParams params = GreedyParams(RandomIds(100, 1), 20);
  params.cache.bypass_write = true;
  Start();
  Run(params);
  EXPECT_EQ(engine_->stats().disk.bytes, 0);
}

TEST_F(DiskEngineTest, FlushedContentDoesNotComeBack) {
  const GenerateParams params = GreedyParams(RandomIds(100, 1), 2);
  Start();
  Run(params);
  absl::StatusOr<int64_t> freed = absl::UnknownError("not done");
  engine_->FlushPrefixCache([&](auto result) { freed = result; });
  const auto before = Submit(params);
  RunUntilIdle();
  EXPECT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(before->summary().usage.cached_tokens, 0);
  EXPECT_EQ(DiskTokens(before), 0);
  EXPECT_EQ(engine_->stats().disk.hits, 0);
  Start();
  EXPECT_EQ(DiskTokens(Run(params)), 96) << "what was computed after the flush is kept";
}

TEST_F(DiskEngineTest, AFlushIsAnsweredOnceItOutlivesTheServer) {
  const GenerateParams params = GreedyParams(RandomIds(100, 1), 2);
  Start();
  Run(params);
  const testing::TempDirectory kept;
  std::filesystem::copy(
      temp_.path(), kept.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  bool is_answered = false;
  engine_->FlushPrefixCache([&](auto result) {
    is_answered = result.ok();
    // The files may be there again after a loss of power, but not the epoch.
    std::filesystem::copy(
        kept.path(), temp_.path(),
        std::filesystem::copy_options::skip_existing | std::filesystem::copy_options::recursive);
  });
  RunUntilIdle();
  ASSERT_TRUE(is_answered);
  Start();
  EXPECT_EQ(Run(params)->summary().usage.cached_tokens, 0);
}

TEST_F(DiskEngineTest, AFlushThatTheDiskRefusesIsAnError) {
  Start();
  Run(GreedyParams(RandomIds(100, 1), 2));
  Disk().sync_error = EIO;
  absl::Status flushed;
  engine_->FlushPrefixCache([&](auto result) { flushed = result.status(); });
  RunUntilIdle();
  EXPECT_EQ(flushed.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(flushed.message().find("after a restart"), std::string::npos) << flushed;
  EXPECT_EQ(Run(GreedyParams(RandomIds(100, 1), 2))->summary().usage.cached_tokens, 0);
}

TEST_F(DiskEngineTest, ADamagedBlockIsComputed) {
  const GenerateParams params = GreedyParams(RandomIds(100, 1), 20);
  Start();
  const auto first = Run(params);
  engine_.reset();
  // The third record, of 1024 bytes of K and V.
  const SegmentShape shape{.block_size = kBlockSize, .block_bytes = 1024, .num_slots = 1};
  const int64_t table = (4 << 20) / (shape.slot_bytes() + SegmentShape::kEntryBytes);
  const int64_t slots =
      SegmentShape::kPage + SegmentShape::ToPage(table * SegmentShape::kEntryBytes);
  Damage(slots + 2 * shape.slot_bytes() + 300);
  Start();
  const auto second = Run(params);
  EXPECT_EQ(DiskTokens(second), 32) << "the blocks before it";
  EXPECT_EQ(engine_->stats().disk.errors, 1);
  EXPECT_EQ(engine_->stats().disk.hits, 2);
  EXPECT_EQ(engine_->stats().disk.misses, 4);
  ExpectSame(second->sample(), first->sample());
  Start();
  EXPECT_EQ(DiskTokens(Run(params)), 96) << "it was written again";
}

TEST_F(DiskEngineTest, ADiskThatCannotBeReadIsLeftAloneForAWhile) {
  const GenerateParams params = GreedyParams(RandomIds(100, 1), 20);
  Start();
  const auto first = Run(params);
  Start();
  Disk().read_error = EIO;
  const auto second = Run(params);
  EXPECT_EQ(DiskTokens(second), 0);
  EXPECT_EQ(engine_->stats().disk.errors, 1);
  ExpectSame(second->sample(), first->sample());
  Disk().read_error = 0;
  Start();
  Disk().read_error = EIO;
  Run(params);
  Disk().read_error = 0;
  GenerateParams longer = GreedyParams(RandomIds(100, 2), 20);
  Run(longer);
  EXPECT_GT(engine_->stats().disk.dropped, 0) << "nothing is written either";
  clock_.Advance(absl::Seconds(31));
  const int64_t dropped = engine_->stats().disk.dropped;
  Run(GreedyParams(RandomIds(100, 3), 20));
  EXPECT_EQ(engine_->stats().disk.dropped, dropped);
}

TEST_F(DiskEngineTest, AFullDiskHarmsNoRequest) {
  Start();
  Disk().write_error = ENOSPC;
  const auto sink = Run(GreedyParams(RandomIds(100, 1), 20));
  EXPECT_EQ(sink->sample().token_ids.size(), 20u);
  EXPECT_EQ(engine_->stats().disk.errors, 1) << "it is not tried again for a while";
  EXPECT_EQ(engine_->stats().disk.dropped, 7);
  Disk().write_error = 0;
  clock_.Advance(absl::Seconds(31));
  Run(GreedyParams(RandomIds(100, 2), 20));
  EXPECT_EQ(engine_->stats().disk.dropped, 7);
  Start();
  EXPECT_EQ(DiskTokens(Run(GreedyParams(RandomIds(100, 2), 20))), 96);
}

// Equal tokens have other K and V there.
TEST_F(DiskEngineTest, OtherModelsAndProgramsFindNothing) {
  const std::function<void(EngineParts&)> others[] = {
      [](EngineParts& parts) { parts.server_info.model_digest = "another"; },
      [](EngineParts& parts) { parts.server_info.answer_numerics = "another"; },
      [](EngineParts& parts) { parts.server_info.backend = "another"; },
      [](EngineParts& parts) { parts.server_info.isa_path = "another"; },
      [](EngineParts& parts) { parts.server_info.version = "another"; },
      [](EngineParts& parts) {
        KvCacheShape shape = parts.cache.shape();
        shape.dtype = kernels::DType::kBF16;
        const std::span<const KvGroup> groups = parts.cache.groups();
        parts.cache = *KvCache::Create(*parts.backend, shape, {groups.begin(), groups.end()});
      }};
  const auto restart = [this](HarnessOptions options = {}) {
    engine_.reset();
    std::filesystem::remove(temp_.path() + "/named.log");  // of one model, which refuses another
    Start(std::move(options));
  };
  const GenerateParams params = GreedyParams(RandomIds(100, 1), 2);
  for (size_t i = 0; i < std::size(others); ++i) {
    restart();
    Run(params);
    restart();
    EXPECT_EQ(DiskTokens(Run(params)), 96);
    restart({.edit_parts = others[i]});
    EXPECT_EQ(Run(params)->summary().usage.cached_tokens, 0) << i;
  }
}

TEST_F(DiskEngineTest, BlocksAreKeptOnRequestAndOfNoModelWithAWindow) {
  for (const bool has_window : {false, true}) {
    for (const int64_t mib : {0, 16}) {
      HarnessOptions options{.window_blocks = 64, .kv_disk_dir = temp_.path()};
      if (has_window) options.layer_patterns[1] = kernels::AttentionPattern::Window(32);
      bool is_refused = false, keeps = false;
      options.edit_parts = [&](EngineParts& parts) {
        const auto kept = OpenKept(parts, {.kv_disk_mib = mib});
        is_refused = absl::IsFailedPrecondition(kept.status());
        keeps = kept.ok() && kept->blocks != nullptr;
      };
      engine_ = EngineHarness::Stepped(options, &model_);
      engine_.reset();
      EXPECT_EQ(is_refused, has_window && mib > 0) << has_window << " " << mib;
      EXPECT_EQ(keeps, !has_window && mib > 0) << has_window << " " << mib;
    }
  }
}

TEST_F(DiskEngineTest, RequestsForTheSamePromptReadItOnce) {
  const TokenIds ids = RandomIds(100, 1);
  Start();
  const auto first = Run(GreedyParams(ids, 20));
  Start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 5; ++i) sinks.push_back(Submit(GreedyParams(ids, 20)));
  RunUntilIdle();
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->finished());
    ExpectSame(sink->sample(), first->sample());
    EXPECT_GE(sink->summary().usage.cached_tokens, 96);
  }
  EXPECT_EQ(engine_->stats().disk.hits, 6);
  EXPECT_EQ(DiskTokens(sinks[0]), 96);
  EXPECT_EQ(DiskTokens(sinks[4]), 0) << "it found them in memory";
}

TEST_F(DiskEngineTest, AllSamplesStartFromDisk) {
  GenerateParams samples = GreedyParams(RandomIds(100, 1), 8);
  samples.sampling.temperature = 0.8f;
  samples.sampling.seed = 7;
  samples.sampling.n = 3;
  Start();
  const auto first = Run(samples);
  Start();
  const auto second = Run(samples);
  EXPECT_EQ(DiskTokens(second), 96);
  for (int32_t k = 0; k < 3; ++k) ExpectSame(second->sample(k), first->sample(k));
}

TEST_F(DiskEngineTest, ANamedPrefixIsWarmedFromDisk) {
  Start();
  std::string name;
  engine_->prefixes()
      .Create({.caller = {.tenant = "a"}, .content = RandomIds(100, 1)},
              [&](auto info) { name = info->name; })
      .IgnoreError();
  RunUntilIdle();
  ASSERT_NE(name, "");
  GenerateParams params = GreedyParams(RandomIds(10, 2), 20);
  params.prefix_name = name;
  params.sched.tenant = "a";
  const auto first = Run(params);
  Start();
  const auto second = Run(params);
  EXPECT_EQ(second->summary().usage.prefix_tokens, 100) << "it waited for the prefix";
  EXPECT_EQ(engine_->stats().disk.hits, 6);
  EXPECT_EQ(engine_->stats().blocks_pinned, 7);
  ExpectSame(second->sample(), first->sample());
}

TEST_F(DiskEngineTest, BlocksOfANamedPrefixOutliveOthers) {
  Start({.kv_disk_mib = 1});
  engine_->prefixes()
      .Create({.caller = {.tenant = "a"}, .content = RandomIds(100, 1), .salt = "s"}, [](auto) {})
      .IgnoreError();
  RunUntilIdle();
  // Twice the blocks that the disk has room for.
  for (uint32_t i = 2; i < 50; ++i) Run(GreedyParams(RandomIds(200, i), 2));
  GenerateParams same = GreedyParams(RandomIds(100, 1), 2);
  same.sched.tenant = "a";
  same.cache.salt = "s";
  Start({.kv_disk_mib = 1});
  EXPECT_EQ(DiskTokens(Run(same)), 96);
  EXPECT_EQ(DiskTokens(Run(GreedyParams(RandomIds(200, 2), 2))), 0);
}

TEST_F(DiskEngineTest, BlocksWithUnsoundValuesAreNotKept) {
  Start();
  model_->void_rows = true;
  const auto sink = Submit(GreedyParams(RandomIds(100, 1), 20));
  RunUntilIdle();
  EXPECT_FALSE(sink->status().ok());
  model_->void_rows = false;
  Start();
  EXPECT_EQ(Run(GreedyParams(RandomIds(100, 1), 20))->summary().usage.cached_tokens, 0);
}

TEST_F(DiskEngineTest, ARequestThatIsCancelledWhileItWaitsEndsAtOnce) {
  const GenerateParams params = GreedyParams(RandomIds(100, 1), 20);
  Start();
  Run(params);
  // Whatever the disk has done of the fetch when the request is cancelled.
  for (int num_steps = 0; num_steps < 6; ++num_steps) {
    Start();
    const auto cancelled = Submit(params);
    while (engine_->RunFrontend()) {
    }
    for (int i = 0; i < num_steps; ++i) engine_->Step();
    if (cancelled->finished()) break;
    handles_.back()->Cancel();
    RunUntilIdle();
    EXPECT_EQ(cancelled->status().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(testing::WhatIsKept(engine_->stats()), "");
    EXPECT_TRUE(Run(params)->status().ok());
  }
}

TEST_F(DiskEngineTest, ARequestPastItsDeadlineEnds) {
  GenerateParams params = GreedyParams(RandomIds(100, 1), 20);
  Start();
  Run(params);
  Start();
  params.deadline = absl::Now() + absl::Seconds(100);
  const auto sink = Submit(params);
  while (engine_->RunFrontend()) {
  }
  engine_->Step();  // the fetch begins
  clock_.Advance(absl::Seconds(200));
  RunUntilIdle();
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(testing::WhatIsKept(engine_->stats()), "");
}

// Copies of the directory at any time, as a kill leaves it. Every answer is that of an engine
// without a disk.
TEST_F(DiskEngineTest, AfterAKillAtAnyTimeAnswersAreTheSame) {
  std::mt19937 random(5);
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const auto params_of = [](uint32_t i) {
    TokenIds ids = RandomIds(40 + 30 * (i % 3), i / 6);  // some begin alike
    for (uint32_t k = 0; k < i % 6; ++k) ids.push_back(static_cast<int32_t>(k));
    return GreedyParams(ids, 3 + static_cast<int32_t>(i % 20));
  };
  constexpr uint32_t kNumPrompts = 30;
  std::vector<CollectingSink::Sample> want;
  {
    testing::FakeModel* model = nullptr;
    const auto alone = EngineHarness::Stepped({.block_size = kBlockSize, .clock = &clock_}, &model);
    for (uint32_t i = 0; i < kNumPrompts; ++i) {
      auto sink = std::make_shared<CollectingSink>();
      ASSERT_TRUE(alone->Submit(params_of(i), sink).ok());
      while (alone->RunFrontend() || alone->Step()) {
      }
      want.push_back(sink->sample());
    }
  }
  int64_t num_hits = 0;
  std::vector<std::unique_ptr<testing::TempDirectory>> lives;
  std::string directory = temp_.path();
  for (int life = 0; life < 12; ++life) {
    Start({.num_blocks = 40, .kv_disk_dir = directory, .kv_disk_mib = 1});
    std::vector<std::pair<uint32_t, std::shared_ptr<CollectingSink>>> sinks;
    lives.push_back(std::make_unique<testing::TempDirectory>());
    bool is_copied = false;
    for (int i = 0; i < 12; ++i) {
      const uint32_t prompt = pick(kNumPrompts);
      sinks.emplace_back(prompt, Submit(params_of(prompt)));
      for (uint32_t steps = pick(12); steps > 0; --steps) {
        engine_->RunFrontend();
        engine_->Step();
        if (is_copied || pick(40) != 0) continue;
        is_copied = true;
        std::filesystem::copy(directory, lives.back()->path());
      }
    }
    if (!is_copied) std::filesystem::copy(directory, lives.back()->path());
    RunUntilIdle();
    for (const auto& [prompt, sink] : sinks) {
      ASSERT_TRUE(sink->finished());
      ExpectSame(sink->sample(), want[prompt]);
    }
    num_hits += engine_->stats().disk.hits;
    std::filesystem::permissions(lives.back()->path(), std::filesystem::perms::owner_all);
    directory = lives.back()->path();
  }
  EXPECT_GT(num_hits, 50);
}

// --- With threads.

class DiskThreadsTest : public ::testing::TestWithParam<testing::MakeHarness> {
 protected:
  void TearDown() override { testing::HealsDisk::Heal(); }
  std::unique_ptr<EngineHarness> Make(HarnessOptions options = {}) {
    options.kv_disk_dir = temp_.path();
    options.kv_disk_mib = 16;
    return GetParam()(options);
  }
  static void WaitUntil(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(condition());
  }
  testing::TempDirectory temp_;
};

TEST_P(DiskThreadsTest, AnAnswerFromDiskHasTheSameBits) {
  const GenerateParams params = GreedyParams(RandomIds(131, 2), 20);
  const CollectingSink::Sample whole = Make()->Generate(params);
  auto harness = Make();
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  ExpectSame(sink->sample(), whole);
  EXPECT_EQ(sink->summary().usage.disk_tokens, 128);
  harness->ExpectIdleIsEmpty();
}

TEST_P(DiskThreadsTest, ADiskThatHangsHoldsNothingUp) {
  const GenerateParams params = GreedyParams(RandomIds(131, 2), 20);
  const CollectingSink::Sample whole = Make()->Generate(params);
  auto harness = Make();
  Disk().reads_hang = Disk().writes_hang = true;
  const auto cancelled = harness->Submit(params);
  WaitUntil([] { return Disk().num_hanging > 0; });
  const auto other = harness->Submit(GreedyParams(RandomIds(50, 3), 20));
  ASSERT_TRUE(other->WaitFinished());
  EXPECT_TRUE(other->status().ok());
  const auto waits = harness->Submit(params);
  harness->handles[0]->Cancel();
  ASSERT_TRUE(cancelled->WaitFinished());
  ASSERT_TRUE(waits->WaitFinished()) << "it is computed";
  ExpectSame(waits->sample(), whole);
  EXPECT_EQ(waits->summary().usage.disk_tokens, 0);
  harness->ExpectIdleIsEmpty();
  // Blocks that were offered are evicted.
  for (uint32_t i = 0; i < 10; ++i) harness->Generate(GreedyParams(RandomIds(400, 100 + i), 2));
  Disk().reads_hang = Disk().writes_hang = false;
  harness->Stop();
  harness = Make();
  ExpectSame(harness->Generate(params), whole);
}

INSTANTIATE_TEST_SUITE_P(Models, DiskThreadsTest,
                         ::testing::Values(&EngineHarness::Fake, &EngineHarness::TinyLlama,
                                           &EngineHarness::TinyUneven));

TEST(DiskStormTest, ManyThreadsUnderEvictionAndAFailingDisk) {
  const testing::TempDirectory directory;
  const testing::HealsDisk heals;
  const HarnessOptions options = {
      .num_blocks = 60, .kv_disk_dir = directory.path(), .kv_disk_mib = 1};
  std::vector<CollectingSink::Sample> want;
  const auto alone = EngineHarness::Fake();
  for (uint32_t i = 0; i < 12; ++i) {
    want.push_back(alone->Generate(GreedyParams(RandomIds(60 + 10 * i, i), 8)));
  }
  int64_t num_hits = 0;
  for (int life = 0; life < 3; ++life) {
    const auto harness = EngineHarness::Fake(options);
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random(thread);
        for (int k = 0; k < 25; ++k) {
          const auto i = static_cast<uint32_t>(random() % want.size());
          auto sink = std::make_shared<CollectingSink>();
          const auto handle =
              harness->engine().Submit(GreedyParams(RandomIds(60 + 10 * i, i), 8), sink);
          ASSERT_TRUE(handle.ok()) << handle.status();
          const bool cancels = random() % 8 == 0;
          if (cancels) (*handle)->Cancel();
          const bool flushes = life == 2 && random() % 20 == 0;
          if (flushes) harness->engine().FlushPrefixCache([](auto) {});
          ASSERT_TRUE(sink->WaitFinished());
          EXPECT_EQ(sink->num_after_finish(), 0);
          if (sink->status().ok()) ExpectSame(sink->sample(), want[i]);
          EXPECT_TRUE(sink->status().ok() || cancels) << sink->status();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    harness->ExpectIdleIsEmpty();
    num_hits += harness->engine().stats().disk.hits;
  }
  EXPECT_GT(num_hits, 0);
}

}  // namespace
}  // namespace quire::engine
