// Tests named prefixes that outlive their engine. A copy of the directory, taken while the engine
// runs, is what a process that is killed at this moment leaves.

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

#include "base/logging.h"
#include "base/mutex.h"
#include "base/resource_name.h"
#include "engine/sharing/prefix_log.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"

namespace {

quire::base::Mutex disk_mu;
std::map<ino_t, int64_t> synced_bytes ABSL_GUARDED_BY(disk_mu);
// The bytes for which each file has space.
std::map<ino_t, int64_t> reserved_bytes ABSL_GUARDED_BY(disk_mu);
bool disk_is_full ABSL_GUARDED_BY(disk_mu) = false;

// Returns false, with errno set, if the disk has no space for the file up to `end`.
bool HasSpace(int fd, int64_t end) {
  struct stat status = {};
  ::fstat(fd, &status);
  const quire::base::MutexLock lock(disk_mu);
  int64_t& reserved = reserved_bytes[status.st_ino];
  if (disk_is_full && end > reserved) {
    errno = ENOSPC;
    return false;
  }
  reserved = std::max(reserved, end);
  return true;
}

void SetDiskFull(bool is_full) {
  const quire::base::MutexLock lock(disk_mu);
  disk_is_full = is_full;
}

void ForgetFiles() {  // since their inodes are used again
  const quire::base::MutexLock lock(disk_mu);
  reserved_bytes.clear();
  synced_bytes.clear();
}

}  // namespace

// These take the place of the C library's. The disk has no more space than SetDiskFull says.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t length) {
  if (!HasSpace(fd, offset + length)) return -1;
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, length));
}

extern "C" ssize_t pwrite(int fd, const void* bytes, size_t size, off_t place) {
  if (!HasSpace(fd, place + static_cast<int64_t>(size))) return -1;
  return ::syscall(SYS_pwrite64, fd, bytes, size, place);
}

// Takes the place of the C library's, and notes how much of each file is on the disk.
extern "C" int fdatasync(int fd) {
  struct stat status = {};
  ::fstat(fd, &status);
  const quire::base::MutexLock lock(disk_mu);
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
  const base::MutexLock lock(disk_mu);
  bytes.resize(std::min<size_t>(bytes.size(), synced_bytes[status.st_ino]));
  return bytes;
}

class PrefixRestartTest : public ::testing::Test {
 protected:
  void TearDown() override {
    SetDiskFull(false);
    engine_.reset();
    ForgetFiles();
  }

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
  // Both clocks go on.
  void Pass(absl::Duration time) {
    clock_.Advance(time);
    clock_.StepDate(time);
  }
  void RunUntilIdle() {
    for (bool any = true; any;) {
      any = engine_->RunFrontend();
      any = engine_->Step() || any;
    }
  }
  NamedPrefixes& prefixes() { return engine_->prefixes(); }
  static ContextCaller Owner() { return {.tenant = "owner"}; }
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
    EXPECT_EQ(got.expire_time, want.expire_time);
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
  const absl::Time first_end = Get(name)->expire_time;
  Pass(absl::Minutes(70));
  Run(name, {1});
  Pass(absl::Minutes(10));
  RunUntilIdle();  // an eighth of the ttl after the hit at the latest
  EXPECT_EQ(Get(name)->expire_time, first_end + absl::Minutes(70));
  const std::string copy = PowerLoss();
  Start(copy);
  EXPECT_EQ(Get(name)->expire_time, first_end + absl::Minutes(70));
  Pass(absl::Minutes(70) - absl::Seconds(20));
  EXPECT_TRUE(Get(name).ok());
  Pass(absl::Seconds(20));
  EXPECT_FALSE(Get(name).ok());
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

TEST_F(PrefixRestartTest, AUseWarmsNoMoreThanLeavesRoomToOtherTenants) {
  Restart();
  const std::string first = Create(Params(RandomIds(10 * kBlockSize, 1)));
  const std::string second = Create(Params(RandomIds(7 * kBlockSize, 2)));
  const std::string third = Create(Params(RandomIds(6 * kBlockSize, 3)));
  Restart();
  for (const std::string& name : {first, second, third}) {
    GenerateParams params = GreedyParams({1}, 4);
    params.prefix_name = name;
    params.sched.tenant = "owner";
    params.limits.has_others = true;
    auto sink = std::make_shared<CollectingSink>();
    ASSERT_TRUE(engine_->Submit(std::move(params), sink).ok());
    RunUntilIdle();
    EXPECT_TRUE(sink->status().ok()) << sink->status();
  }
  EXPECT_EQ(Get(first)->state, PrefixState::kReady);
  EXPECT_EQ(Get(second)->state, PrefixState::kCold) << "17 of the 16 that one may pin of 32";
  EXPECT_EQ(Get(third)->state, PrefixState::kReady);
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

TEST_F(PrefixRestartTest, ADeletionOutlivesAFullDisk) {
  Restart();
  const std::string kept = Create(Params(RandomIds(20, 1)));
  std::vector<std::string> names;
  for (uint32_t i = 0; i < 10; ++i) names.push_back(Create(Params(RandomIds(20, 10 + i))));
  SetDiskFull(true);
  PrefixParams large = Params(RandomIds(20, 2));
  // Space is reserved in pieces. What is left of the last one is filled, until no content fits.
  for (const size_t num_tenants : {256, 64, 16, 4, 1, 0}) {
    large.allowed_tenants.assign(num_tenants, std::string(200, 't'));
    auto refused = TryCreate(large);
    for (; refused.ok() && refused->error.ok(); refused = TryCreate(large)) {
      names.push_back(refused->name);
      ASSERT_LT(names.size(), 40u);
    }
    ASSERT_TRUE(refused.ok());
    EXPECT_EQ(refused->error.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(refused->error.message().find(temp_.path()), std::string::npos)
        << "a client sees no path: " << refused->error;
  }
  large.allowed_tenants.assign(256, std::string(200, 't'));
  // A change waits for space, and holds up no deletion.
  ASSERT_TRUE(
      prefixes()
          .Update(Owner(),
                  {.name = kept, .display_name = "new", .allowed_tenants = large.allowed_tenants})
          .ok());
  RunUntilIdle();
  for (const std::string& name : names) {
    ASSERT_TRUE(prefixes().Delete(Owner(), name, "").ok());
    RunUntilIdle();
  }
  const std::string copy = PowerLoss();
  SetDiskFull(false);
  Pass(absl::Seconds(30));
  RunUntilIdle();
  const std::string later = PowerLoss();
  Start(copy);
  EXPECT_EQ(prefixes().List(Owner(), std::nullopt, 0, 100)->prefixes.size(), 1u);
  EXPECT_EQ(Get(kept)->display_name, "");
  Start(later);
  EXPECT_EQ(Get(kept)->display_name, "new");
  engine_.reset();
  std::filesystem::remove_all(copy);
  std::filesystem::remove_all(later);
}

TEST_F(PrefixRestartTest, ALogThatWasRemovedIsWrittenAgain) {
  Restart();
  const std::string first = Create(Params(RandomIds(20, 1)));
  std::filesystem::remove(temp_.path() + "/named.log");
  const std::string second = Create(Params(RandomIds(20, 2)));
  const std::string copy = PowerLoss();
  Start(copy);
  EXPECT_TRUE(Get(first).ok());
  EXPECT_TRUE(Get(second).ok());
  engine_.reset();
  std::filesystem::remove_all(copy);
}

TEST_F(PrefixRestartTest, ALookDoesNotMoveTheEnd) {
  Restart();
  PrefixParams params = Params(RandomIds(20, 1));
  params.expiration = clock_.Date() + absl::Hours(3);
  const std::string by_date = Create(params);
  EXPECT_EQ(Get(by_date)->expire_time, std::get<absl::Time>(params.expiration));
  const std::string by_ttl = Create(Params(RandomIds(20, 2)));
  Run(by_ttl, {1});
  for (const std::string& name : {by_date, by_ttl}) {
    const PrefixInfo before = *Get(name);
    clock_.Advance(absl::Minutes(1));
    ExpectSameFields(*Get(name), before);
    clock_.StepDate(absl::Minutes(-20));
    const PrefixInfo after = *Get(name);
    ExpectSameFields(after, before);
    EXPECT_EQ(after.use->last_hit_time, before.use->last_hit_time);
    RunUntilIdle();
    Restart();
    ExpectSameFields(*Get(name), before);
  }
}

// testdata/state_version_1 was written by a server of that version, which was killed.
class KeptStateTest : public PrefixRestartTest {
 protected:
  KeptStateTest() {
    for (const char* file : {"named.log", "kv.store", "lock"}) {
      std::filesystem::copy(testing::TestSourcePath("engine/testdata/state_version_1/") + file,
                            temp_.path());
    }
    absl::Time made;
    std::string error;
    EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, "2026-11-28T14:30:22Z", &made, &error));
    clock_.StepDate(made - absl::Now());
  }
  void Open() { Start(temp_.path(), {.num_blocks = 64, .kv_disk_mib = 16}); }
  static PrefixParams ParamsOfIds() {
    PrefixParams params = Params({});
    for (int32_t i = 1; i <= 20; ++i) std::get<TokenIds>(params.content).push_back(i);
    params.display_name = "ids";
    params.expiration = absl::Hours(24 * 365 * 100);
    params.refresh_on_hit = true;
    params.allowed_tenants = {"a", "*"};
    params.salt = "s";
    params.request_id = "r";
    return params;
  }
};

TEST_F(KeptStateTest, AFolderOfVersion1OpensUnchanged) {
  std::vector<PrefixInfo> first;
  for (const char version : {1, 2}) {
    EXPECT_EQ(testing::ReadFile(temp_.path() + "/named.log")[8], version);
    Open();
    const std::vector<PrefixInfo> all = prefixes().List(Owner(), std::nullopt, 0, 100)->prefixes;
    ASSERT_EQ(all.size(), 4u) << "and none that was deleted";
    if (first.empty()) first = all;
    for (size_t i = 0; i < all.size(); ++i) ExpectSameFields(all[i], first[i]);
    EXPECT_EQ(all[0].name, "prefixes/q80qgssnebmwyk89nwqkzkvdxw");
    EXPECT_EQ(all[0].display_name, "ids");
    EXPECT_EQ(all[0].num_tokens, 20);
    EXPECT_EQ(all[0].allowed_tenants, (std::vector<std::string>{"a", "*"}));
    EXPECT_TRUE(all[0].refresh_on_hit);
    EXPECT_EQ(all[0].ttl, absl::Hours(24 * 365 * 100));
    EXPECT_EQ(all[1].display_name, "text");
    EXPECT_EQ(all[2].display_name, "chat");
    EXPECT_EQ(all[3].display_name, "revoked");
    EXPECT_EQ(all[3].allowed_tenants, std::vector<std::string>{"b"});
    EXPECT_EQ(all[3].etag, "4-2");
    for (const PrefixInfo& info : all) EXPECT_EQ(Warm(info.name)->state, PrefixState::kReady);
  }
  EXPECT_FALSE(std::filesystem::exists(temp_.path() + "/named.log.damaged"));
}

TEST_F(KeptStateTest, ARequestIdOfVersion1IsComparedAsItWasMade) {
  for (int i = 0; i < 2; ++i) {
    Open();
    PrefixParams params = ParamsOfIds();
    EXPECT_EQ(Create(params), "prefixes/q80qgssnebmwyk89nwqkzkvdxw");
    params.salt = "other";
    EXPECT_EQ(Create(params), "prefixes/q80qgssnebmwyk89nwqkzkvdxw")
        << "its digest has the content alone";
    params.content = TokenIds{1};
    EXPECT_EQ(TryCreate(params).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(PrefixRestartTest, ARequestIdStandsForEveryFieldAlsoAfterARestart) {
  Restart();
  PrefixParams params = Params(RandomIds(20, 1));
  params.request_id = "r";
  const std::string name = Create(params);
  for (int i = 0; i < 2; ++i) {
    PrefixParams salted = params, longer = params, shared = params;
    salted.salt = "s";
    longer.expiration = absl::Hours(2);
    shared.allowed_tenants = {"a"};
    for (const PrefixParams& other : {salted, longer, shared}) {
      EXPECT_EQ(TryCreate(other).status().code(), absl::StatusCode::kInvalidArgument);
    }
    EXPECT_EQ(Create(params), name);
    Restart();
  }
}

// Opens a log with each of its bits flipped in turn, from `begin` on. Calls `check` with what is
// known.
using Known = std::map<std::string, SavedPrefix>;  // by display name
void OpenDamaged(const std::string& whole, size_t begin,
                 const std::function<void(size_t place, const Known& known)>& check) {
  const testing::TempDirectory temp;
  const auto directory = *files::StateDirectory::Open(temp.path());
  base::SetLogLevel(base::LogLevel::kError);
  for (size_t i = begin; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    temp.Write("named.log", bytes);
    for (int again = 0; again < 2; ++again) {
      auto log = PrefixLog::Open(*directory, "digest", {.max_bytes = 1 << 20, .vocab_size = 300});
      ASSERT_TRUE(log.ok()) << i << log.status();
      Known known;
      for (SavedPrefix& saved : (*log)->TakeSaved()) known[saved.display_name] = std::move(saved);
      check(i, known);
      EXPECT_FALSE((*log)->is_broken()) << "it was written anew";
      EXPECT_EQ(testing::ReadFile(temp.path() + "/named.log.damaged"), bytes) << i;
    }
  }
  base::SetLogLevel(base::LogLevel::kInfo);
}

// The tenants of "revoked" were a and b, and are b alone. "deleted" is not there any more.
TEST(PrefixLogTest, DamageBringsBackNothingThatWasRevoked) {
  const testing::TempDirectory temp;
  std::string whole;
  size_t begin = 0, change_begin = 0;
  {
    const auto directory = *files::StateDirectory::Open(temp.path());
    auto log = *PrefixLog::Open(*directory, "digest", {.max_bytes = 1 << 20, .vocab_size = 300});
    begin = log->bytes();
    const auto content = std::make_shared<PrefixContent>();
    content->ids = {1, 2, 3};
    content->given = content->ids;
    uint64_t pin = 0;
    for (const char* name : {"first", "revoked", "deleted", "fourth", "last"}) {
      SavedPrefix saved{.pin = ++pin,
                        .name = base::NewResourceName("prefixes"),
                        .tenant = "owner",
                        .display_name = name,
                        .allowed_tenants = {"a", "b"},
                        .content = content};
      ASSERT_TRUE(log->Save(saved).ok());
      if (saved.display_name != "fourth") continue;
      ASSERT_TRUE(log->Remove(3).ok());
      change_begin = log->bytes();
      saved = {.pin = 2,
               .name = base::NewResourceName("prefixes"),
               .tenant = "owner",
               .display_name = "revoked",
               .allowed_tenants = {"b"},
               .version = 2,
               .content = content};
      ASSERT_TRUE(log->Save(saved).ok());
    }
    ASSERT_TRUE(log->Sync().ok());
    whole = testing::ReadFile(temp.path() + "/named.log");
  }
  size_t num_closed = 0, num_lost = 0, num_back = 0;
  OpenDamaged(whole, begin, [&](size_t i, const Known& known) {
    const bool is_back = known.contains("deleted");
    ASSERT_GE(known.size(), 3u + (is_back ? 1 : 0)) << i;
    num_back += is_back ? 1 : 0;
    num_lost += known.size() < 4u + (is_back ? 1 : 0) ? 1 : 0;
    for (const auto& [name, saved] : known) {
      const std::vector<std::string> want =
          name == "revoked" ? std::vector<std::string>{"b"} : std::vector<std::string>{"a", "b"};
      if (saved.allowed_tenants == want && name != "deleted") continue;
      EXPECT_FALSE(name == "revoked" && i < change_begin) << i << ": its last change is whole";
      ++num_closed;
      ASSERT_EQ(saved.allowed_tenants, std::vector<std::string>()) << i << name;
      EXPECT_GT(saved.version, 1000u) << "no etag comes again";
    }
  });
  EXPECT_GT(num_lost, 0u);
  EXPECT_GT(num_closed, 0u);
  // Only if its end cannot be read, of which nothing but the head is there; and twice each.
  EXPECT_EQ(num_back, 2 * static_cast<size_t>(files::RecordLog::BytesOf(0)));
}

TEST(PrefixLogTest, ALogLineCountsAndNamesThePrefixesWhoseLastChangeIsDamaged) {
  const testing::TempDirectory temp;
  const auto directory = *files::StateDirectory::Open(temp.path());
  const auto content = std::make_shared<PrefixContent>();
  content->ids = {1, 2, 3};
  content->given = content->ids;
  std::vector<int64_t> changes_end;
  std::vector<std::string> names;
  {
    auto log = *PrefixLog::Open(*directory, "digest", {.max_bytes = 1 << 20, .vocab_size = 300});
    for (uint64_t pin = 1; pin <= 3; ++pin) {
      names.push_back(base::NewResourceName("prefixes"));
      const SavedPrefix saved{
          .pin = pin, .name = names.back(), .tenant = "owner", .content = content};
      ASSERT_TRUE(log->Save(saved).ok());
    }
    for (uint64_t pin = 2; pin <= 3; ++pin) {
      const SavedPrefix changed{
          .pin = pin, .name = names[pin - 1], .tenant = "owner", .version = 2, .content = content};
      ASSERT_TRUE(log->Save(changed).ok());
      changes_end.push_back(log->bytes());
    }
    ASSERT_TRUE(log->Sync().ok());
  }
  std::string bytes = testing::ReadFile(temp.path() + "/named.log");
  for (const int64_t end : changes_end) bytes[static_cast<size_t>(end) - 1] ^= 1;
  temp.Write("named.log", bytes);
  ::testing::internal::CaptureStderr();
  const auto log = PrefixLog::Open(*directory, "digest", {.max_bytes = 1 << 20, .vocab_size = 300});
  const std::string line = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_NE(line.find("kept beside it as named.log.damaged"), std::string::npos) << line;
  const std::string want =
      absl::StrFormat("damaged_records=2 prefixes=2 names=\"%s %s\"\n", names[1], names[2]);
  EXPECT_TRUE(line.ends_with(want)) << line;
}

TEST(PrefixLogTest, DamageOfVersion1BringsBackNothingThatWasRevoked) {
  const std::string whole =
      testing::ReadFile(testing::TestSourcePath("engine/testdata/state_version_1/named.log"));
  size_t num_with_all = 0;
  OpenDamaged(whole, /*begin=*/0x38, [&](size_t i, const Known& known) {
    for (const char* name : {"revoked", "deleted"}) {
      if (!known.contains(name)) continue;
      const std::vector<std::string>& allowed = known.at(name).allowed_tenants;
      EXPECT_TRUE(allowed.empty() ||
                  (name == std::string("revoked") && allowed == std::vector<std::string>{"b"}))
          << i << name;
    }
    num_with_all += known.size() >= 3 ? 1 : 0;
  });
  EXPECT_GT(num_with_all, 2 * (whole.size() - 0x38) * 9 / 10) << "most damage costs one prefix";
}

TEST(PrefixLogTest, BoundsHoldAtTheirEdges) {
  const testing::TempDirectory temp;
  const auto directory = *files::StateDirectory::Open(temp.path());
  const auto content = std::make_shared<PrefixContent>();
  content->ids = {0, 9};
  content->given = content->ids;
  const SavedPrefix saved{
      .pin = 1, .name = base::NewResourceName("prefixes"), .tenant = "owner", .content = content};
  int64_t bytes = 0;
  {
    auto log = *PrefixLog::Open(*directory, "digest", {.max_bytes = 1 << 20, .vocab_size = 10});
    const int64_t before = log->bytes();
    ASSERT_TRUE(log->Save(saved).ok());
    ASSERT_TRUE(log->Sync().ok());
    bytes = log->bytes() - before;
  }
  EXPECT_EQ(PrefixLog::Open(*directory, "digest", {.max_bytes = 1 << 20, .vocab_size = 9})
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
  {
    auto log = *PrefixLog::Open(*directory, "digest", {.max_bytes = 2 * bytes, .vocab_size = 10});
    EXPECT_EQ(log->TakeSaved().at(0).content->ids, content->ids);
    SavedPrefix second = saved;
    second.pin = 2;
    EXPECT_TRUE(log->Save(second).ok());
    ASSERT_TRUE(log->Remove(2).ok());
  }
  auto log = *PrefixLog::Open(*directory, "digest", {.max_bytes = 2 * bytes - 1, .vocab_size = 10});
  SavedPrefix third = saved;
  third.pin = 3;
  EXPECT_EQ(log->Save(third).code(), absl::StatusCode::kResourceExhausted);
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
