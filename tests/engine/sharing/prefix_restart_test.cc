// Tests named prefixes that outlive their engine. A copy of the directory, taken while the engine
// runs, is what a process that is killed at this moment leaves.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "gtest/gtest.h"

#include "base/mutex.h"
#include "engine/sharing/prefix_log.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/temp_directory.h"

namespace {

quire::base::Mutex synced_mu;
std::map<ino_t, int64_t> synced_bytes ABSL_GUARDED_BY(synced_mu);

}  // namespace

// Takes the place of the C library's, and notes how much of each file is on the disk.
extern "C" int fdatasync(int fd) {
  struct stat status = {};
  ::fstat(fd, &status);
  const quire::base::MutexLock lock(synced_mu);
  synced_bytes[status.st_ino] = status.st_size;
  return 0;
}

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::FakeClock;
using testing::GreedyParams;
using testing::RandomIds;

constexpr int32_t kBlockSize = 16;

// The bytes of a file that outlive a loss of power: what was synced of it.
std::string SyncedPart(const std::string& path) {
  struct stat status = {};
  ::stat(path.c_str(), &status);
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const base::MutexLock lock(synced_mu);
  bytes.resize(std::min<size_t>(bytes.size(), synced_bytes[status.st_ino]));
  return bytes;
}

class PrefixRestartTest : public ::testing::Test {
 protected:
  void TearDown() override { engine_.reset(); }

  void Start(const std::string& directory, testing::HarnessOptions options = {.num_blocks = 64}) {
    engine_.reset();  // which frees the directory
    options.block_size = kBlockSize;
    options.clock = &clock_;
    options.kv_disk_dir = directory;
    engine_ = EngineHarness::Stepped(options, &model_);
  }
  void Restart() { Start(temp_.path()); }
  // Copies what a loss of power would leave of the directory.
  std::string PowerLoss() const {
    const std::string copy = temp_.path() + std::to_string(++num_copies_);
    std::filesystem::create_directory(copy);
    std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
    std::ofstream(copy + "/named.log", std::ios::binary) << SyncedPart(temp_.path() + "/named.log");
    return copy;
  }
  void RunUntilIdle() {
    for (bool any = true; any;) {
      any = engine_->RunFrontend();
      any = engine_->Step() || any;
    }
  }
  NamedPrefixes& prefixes() { return engine_->prefixes(); }
  static PrefixCaller Owner() { return {.tenant = "owner"}; }
  static PrefixParams Params(TokenIds ids) {
    return {.caller = Owner(), .content = std::move(ids)};
  }
  absl::StatusOr<PrefixInfo> TryCreate(PrefixParams params) {
    absl::StatusOr<PrefixInfo> result = absl::UnknownError("not done");
    const auto name = prefixes().Create(std::move(params), [&](auto info) { result = info; });
    if (!name.ok()) return name.status();
    RunUntilIdle();
    return result;
  }
  std::string Create(PrefixParams params) {
    const auto info = TryCreate(std::move(params));
    EXPECT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->state, PrefixState::kReady) << info->error;
    return info->name;
  }
  absl::StatusOr<PrefixInfo> Get(const std::string& name) { return prefixes().Get(Owner(), name); }
  absl::StatusOr<PrefixInfo> Warm(const std::string& name) {
    absl::StatusOr<PrefixInfo> result = absl::UnknownError("not done");
    prefixes().Warm(Owner(), name, [&](auto info) { result = std::move(info); });
    RunUntilIdle();
    return result;
  }
  std::shared_ptr<CollectingSink> Run(const std::string& name, TokenIds ids) {
    auto sink = std::make_shared<CollectingSink>();
    GenerateParams params = GreedyParams(std::move(ids), 4);
    params.prefix_name = name;
    params.sched.tenant = "owner";
    const auto handle = engine_->Submit(std::move(params), sink);
    EXPECT_TRUE(handle.ok()) << handle.status();
    RunUntilIdle();
    EXPECT_TRUE(sink->status().ok()) << sink->status();
    return sink;
  }
  static void ExpectSameFields(const PrefixInfo& got, const PrefixInfo& want) {
    EXPECT_EQ(got.name, want.name);
    EXPECT_EQ(got.display_name, want.display_name);
    EXPECT_EQ(got.tenant, want.tenant);
    EXPECT_EQ(got.num_tokens, want.num_tokens);
    EXPECT_EQ(got.content_sha256, want.content_sha256);
    EXPECT_EQ(got.create_time, want.create_time);
    EXPECT_EQ(got.update_time, want.update_time);
    EXPECT_LT(absl::AbsDuration(got.expire_time - want.expire_time), absl::Seconds(20));
    EXPECT_EQ(got.ttl, want.ttl);
    EXPECT_EQ(got.refresh_on_hit, want.refresh_on_hit);
    EXPECT_EQ(got.allowed_tenants, want.allowed_tenants);
    EXPECT_EQ(got.etag, want.etag);
  }

  testing::TempDirectory temp_;
  mutable int num_copies_ = 0;
  FakeClock clock_;
  testing::FakeModel* model_ = nullptr;
  std::unique_ptr<SteppedEngine> engine_;
};

TEST_F(PrefixRestartTest, IsColdAfterARestartAndComesBackByAUse) {
  Restart();
  const TokenIds ids = RandomIds(40, 1);
  PrefixParams params = Params(ids);
  params.display_name = "rules";
  params.allowed_tenants = {"a", "*"};
  params.expiration = absl::Minutes(30);
  params.refresh_on_hit = true;
  params.salt = "s";
  const std::string name = Create(params);
  const PrefixInfo before = *Get(name);
  const auto want = Run(name, {1, 2, 3});
  EXPECT_EQ(want->summary().usage.prefix_tokens, 40);

  Restart();
  const PrefixInfo cold = *Get(name);
  EXPECT_EQ(cold.state, PrefixState::kCold);
  EXPECT_EQ(cold.num_blocks, 0);
  ExpectSameFields(cold, before);
  EXPECT_EQ(engine_->stats().prefixes, (std::array<int64_t, 4>{0, 0, 0, 1}));
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);

  EXPECT_EQ(Run(name, {1, 2, 3})->sample().token_ids, want->sample().token_ids);
  EXPECT_EQ(Get(name)->state, PrefixState::kReady);
  EXPECT_EQ(Get(name)->num_blocks, 3);
  EXPECT_EQ(engine_->stats().blocks_pinned, 3);
  const auto warm = Run(name, {1, 2, 3});
  EXPECT_EQ(warm->sample().token_ids, want->sample().token_ids);
  EXPECT_EQ(warm->summary().usage.prefix_tokens, 40);
  ASSERT_TRUE(prefixes().Delete(Owner(), name, "").ok());
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);
}

TEST_F(PrefixRestartTest, WarmBringsItBack) {
  Restart();
  const std::string name = Create(Params(RandomIds(40, 1)));
  Restart();
  const auto info = Warm(name);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->state, PrefixState::kReady);
  EXPECT_EQ(Run(name, {1})->summary().usage.prefix_tokens, 40);
  Restart();
  EXPECT_EQ(Get(name)->state, PrefixState::kCold) << "a second restart knows it, too";
}

TEST_F(PrefixRestartTest, TheFirstRequestsOnAColdPrefixComputeItOnce) {
  Restart();
  PrefixParams params = Params(RandomIds(40, 1));
  params.allowed_tenants = {"*"};
  const std::string name = Create(params);
  for (const char* tenant : {"owner", "other"}) {
    for (const int32_t priority : {0, 5}) {
      Restart();
      std::vector<std::shared_ptr<CollectingSink>> sinks;
      for (int i = 0; i < 2; ++i) {
        GenerateParams request = GreedyParams(RandomIds(3, 10 + i), 4);
        request.prefix_name = name;
        request.sched = {.priority = priority, .tenant = tenant};
        sinks.push_back(std::make_shared<CollectingSink>());
        ASSERT_TRUE(engine_->Submit(std::move(request), sinks.back()).ok());
      }
      RunUntilIdle();
      for (const auto& sink : sinks) {
        ASSERT_TRUE(sink->status().ok()) << sink->status();
        EXPECT_EQ(sink->summary().usage.prefix_tokens, 40);
      }
      EXPECT_EQ(engine_->stats().prompt_tokens_computed, 40 + 2 * 3) << tenant << " " << priority;
    }
  }
}

TEST_F(PrefixRestartTest, AColdPrefixIsBroughtBackBeforeItsRequestIsTokenized) {
  Restart();
  const std::string name = Create(Params(RandomIds(40, 1)));
  Restart();
  auto sink = std::make_shared<CollectingSink>();
  GenerateParams request = GreedyParams({1, 2, 3}, 4);
  request.prefix_name = name;
  request.sched.tenant = "owner";
  ASSERT_TRUE(engine_->Submit(std::move(request), sink).ok());
  while (engine_->Step()) {
  }
  EXPECT_EQ(Get(name)->state, PrefixState::kReady);
  EXPECT_FALSE(sink->finished());
  RunUntilIdle();
  EXPECT_EQ(sink->summary().usage.prefix_tokens, 40);
}

TEST_F(PrefixRestartTest, WhatIsAnsweredOutlivesALossOfPower) {
  Restart();
  std::vector<std::pair<std::string, std::string>> answered;  // name, and the directory then
  for (int i = 0; i < 3; ++i) {
    std::string copy;
    const auto name = prefixes().Create(Params(RandomIds(20 + i, i)), [&](auto info) {
      EXPECT_EQ(info->state, PrefixState::kReady);
      copy = PowerLoss();
    });
    RunUntilIdle();
    ASSERT_FALSE(copy.empty());
    answered.emplace_back(*name, copy);
  }
  for (size_t i = 0; i < answered.size(); ++i) {
    Start(answered[i].second);
    for (size_t k = 0; k <= i; ++k) {
      const auto info = Get(answered[k].first);
      ASSERT_TRUE(info.ok()) << i << " " << k << info.status();
      EXPECT_EQ(info->num_tokens, 20 + static_cast<int64_t>(k));
    }
    engine_.reset();
    std::filesystem::remove_all(answered[i].second);
  }
}

TEST_F(PrefixRestartTest, ChangesAndEndsOutliveItToo) {
  Restart();
  const std::string kept = Create(Params(RandomIds(20, 1)));
  const std::string deleted = Create(Params(RandomIds(20, 2)));
  PrefixParams soon = Params(RandomIds(20, 3));
  soon.expiration = absl::Seconds(60);
  const std::string expired = Create(soon);
  ASSERT_TRUE(prefixes()
                  .Update(Owner(), {.name = kept,
                                    .display_name = "new",
                                    .expiration = {{absl::Hours(2)}},
                                    .refresh_on_hit = true,
                                    .allowed_tenants = {{"b"}}})
                  .ok());
  ASSERT_TRUE(prefixes().Delete(Owner(), deleted, "").ok());
  clock_.Advance(absl::Seconds(60));
  RunUntilIdle();
  const PrefixInfo before = *Get(kept);
  for (int i = 0; i < 2; ++i) {
    Restart();
    ExpectSameFields(*Get(kept), before);
    EXPECT_FALSE(Get(deleted).ok());
    EXPECT_FALSE(Get(expired).ok());
    ASSERT_EQ(prefixes().List(Owner(), std::nullopt, 0, 10)->prefixes.size(), 1u);
  }
  // A later change needs the log of the first run.
  ASSERT_TRUE(prefixes().Update(Owner(), {.name = kept, .display_name = "newer"}).ok());
  RunUntilIdle();
  Restart();
  EXPECT_EQ(Get(kept)->display_name, "newer");
  EXPECT_EQ(Run(kept, {1})->summary().usage.prompt_tokens, 21);
}

TEST_F(PrefixRestartTest, WhatWasDeletedWhileItWasComputedIsGone) {
  for (int num_steps = 0; num_steps < 8; ++num_steps) {
    Restart();
    const auto name = prefixes().Create(Params(RandomIds(40, 1)), [](auto) {});
    ASSERT_TRUE(name.ok());
    for (int i = 0; i < num_steps; ++i) {
      engine_->RunFrontend();
      engine_->Step();
    }
    ASSERT_TRUE(prefixes().Delete(Owner(), *name, "").ok());
    RunUntilIdle();
    Restart();
    EXPECT_EQ(engine_->stats().prefixes, (std::array<int64_t, 4>{})) << num_steps << " steps";
  }
}

TEST_F(PrefixRestartTest, ItsEndMovesWithHitsOnDiskAsWell) {
  Restart();
  PrefixParams params = Params(RandomIds(20, 1));
  params.expiration = absl::Minutes(80);
  params.refresh_on_hit = true;
  const std::string name = Create(params);
  clock_.Advance(absl::Minutes(70));
  Run(name, {1});
  clock_.Advance(absl::Minutes(10));
  RunUntilIdle();  // an eighth of the ttl after the hit at the latest
  const std::string copy = PowerLoss();
  Start(copy);
  // The wall clock stands still beside the engine: of the first end 80 minutes are left, and 70 of
  // that after the hit.
  EXPECT_LT(absl::AbsDuration(Get(name)->expire_time - absl::Now() - absl::Minutes(70)),
            absl::Minutes(5));
  engine_.reset();
  std::filesystem::remove_all(copy);
}

TEST_F(PrefixRestartTest, ARequestIdStaysItsOwn) {
  Restart();
  PrefixParams params = Params(RandomIds(20, 1));
  params.request_id = "r";
  const std::string name = Create(params);
  Restart();
  EXPECT_EQ(Create(params), name) << "and it is brought back";
  PrefixParams other = Params(RandomIds(20, 2));
  other.request_id = "r";
  EXPECT_EQ(TryCreate(other).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PrefixRestartTest, ThereIsNoPinOfAnEarlierRun) {
  Restart();
  const std::string first = Create(Params(RandomIds(20, 1)));
  const std::string second = Create(Params(RandomIds(20, 2)));
  const std::string etag = Get(second)->etag;
  ASSERT_TRUE(prefixes().Delete(Owner(), second, "").ok());
  Restart();
  const std::string third = Create(Params(RandomIds(20, 3)));
  EXPECT_NE(Get(third)->etag, etag);
  EXPECT_NE(Get(third)->etag, Get(first)->etag);
  EXPECT_EQ(Get(first)->state, PrefixState::kCold) << "until it is used";
}

TEST_F(PrefixRestartTest, WithoutMemoryItStaysCold) {
  Restart();
  const std::string cold = Create(Params(RandomIds(20 * kBlockSize, 1)));
  Restart();
  const std::string other = Create(Params(RandomIds(20 * kBlockSize, 2)));
  EXPECT_EQ(Warm(cold).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Get(cold)->state, PrefixState::kCold);
  EXPECT_EQ(Run(cold, {1})->summary().usage.prompt_tokens, 20 * kBlockSize + 1);
  EXPECT_EQ(Get(cold)->state, PrefixState::kCold);
  ASSERT_TRUE(prefixes().Delete(Owner(), other, "").ok());
  RunUntilIdle();
  EXPECT_EQ(Warm(cold)->state, PrefixState::kReady);
}

TEST_F(PrefixRestartTest, ARequestOnAColdPrefixBringsItsBlocksAlong) {
  const testing::HarnessOptions options = {.num_blocks = 40};
  Start(temp_.path(), options);
  const std::string cold = Create(Params(RandomIds(15 * kBlockSize, 1)));
  Start(temp_.path(), options);
  Create(Params(RandomIds(15 * kBlockSize, 2)));
  auto sink = std::make_shared<CollectingSink>();
  GenerateParams params = GreedyParams(RandomIds(13 * kBlockSize, 3), 16);
  params.prefix_name = cold;
  params.sched.tenant = "owner";
  ASSERT_TRUE(engine_->Submit(std::move(params), sink).ok());
  while (engine_->RunFrontend()) {
  }
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kResourceExhausted) << "29 of 25 blocks";
}

TEST_F(PrefixRestartTest, WhatTheDiskCannotHoldIsRefusedAndNotPinned) {
  Start(temp_.path(), {.num_blocks = 64, .prefix_disk_mib = 1});
  PrefixParams params = Params(RandomIds(20, 1));
  params.allowed_tenants = {std::string(1 << 20, 't')};
  const auto info = TryCreate(params);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->state, PrefixState::kFailed);
  EXPECT_EQ(info->error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);
  Create(Params(RandomIds(32 * kBlockSize - 1, 2)));  // the ledger has nothing of the other
}

TEST_F(PrefixRestartTest, TheLogDoesNotGrowWithChanges) {
  Restart();
  const std::string name = Create(Params(RandomIds(20, 1)));
  const std::vector<std::string> many(256, std::string(100, 't'));
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(prefixes().Update(Owner(), {.name = name, .allowed_tenants = many}).ok());
    engine_->Step();
  }
  EXPECT_LT(std::filesystem::file_size(temp_.path() + "/named.log"), 2 << 20);
  const PrefixInfo before = *Get(name);
  Restart();
  ExpectSameFields(*Get(name), before);
}

TEST_F(PrefixRestartTest, TextAndMessagesGoOn) {
  Restart();
  const std::string of_text = Create({.caller = Owner(), .content = std::string("The rules")});
  const std::string of_chat =
      Create({.caller = Owner(), .content = ChatMessages{{"system", "be brief"}}});
  const auto answer = [&](const std::string& name, PromptContent prompt) {
    auto sink = std::make_shared<CollectingSink>();
    GenerateParams params = GreedyParams({}, 4);
    params.prompt = std::move(prompt);
    params.prefix_name = name;
    params.sched.tenant = "owner";
    const auto handle = engine_->Submit(std::move(params), sink);
    EXPECT_TRUE(handle.ok()) << handle.status();
    RunUntilIdle();
    EXPECT_TRUE(sink->status().ok()) << sink->status();
    return sink->sample().token_ids;
  };
  const TokenIds text = answer(of_text, " hold"),
                 chat = answer(of_chat, ChatMessages{{"user", "x"}});
  Restart();
  EXPECT_EQ(answer(of_text, " hold"), text);
  EXPECT_EQ(answer(of_chat, ChatMessages{{"user", "x"}}), chat);
}

TEST(PrefixLogTest, ALogOfAnotherModelIsRefused) {
  const testing::TempDirectory temp;
  const auto directory = *files::StateDirectory::Open(temp.path());
  const PrefixLogLimits limits = {.max_bytes = 1000, .vocab_size = 10};
  ASSERT_TRUE(PrefixLog::Open(*directory, "one", limits).ok());
  const absl::Status status = PrefixLog::Open(*directory, "two", limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.ToString().find("Name another directory"), std::string::npos);
  EXPECT_TRUE(PrefixLog::Open(*directory, "one", limits).ok());
}

}  // namespace
}  // namespace quire::engine
