// Eight threads create, use, update, list, delete and cancel named prefixes in every state, while
// timers end them. Under ThreadSanitizer this looks for races; everywhere it looks for calls that
// are lost and blocks that stay.

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "base/mutex.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/temp_directory.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::GreedyParams;
using testing::RandomIds;

// Creates a prefix, follows it and deletes it.
void ExpectPrefixServes(Engine& engine) {
  const ContextCaller caller{.tenant = "a"};
  std::promise<absl::StatusOr<PrefixInfo>> ready;
  const auto name = engine.prefixes().Create(
      {.caller = caller, .content = RandomIds(100, 1), .expiration = absl::Hours(1)},
      [&](absl::StatusOr<PrefixInfo> info) { ready.set_value(std::move(info)); });
  ASSERT_TRUE(name.ok()) << name.status();
  const absl::StatusOr<PrefixInfo> info = ready.get_future().get();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->state, PrefixState::kReady);
  GenerateParams request = GreedyParams(RandomIds(5, 2), 2);
  request.prefix_name = *name;
  request.sched.tenant = caller.tenant;
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine.Submit(request, sink).ok());
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->summary().usage.prefix_tokens, 100);
  EXPECT_TRUE(engine.prefixes().Delete(caller, *name, "").ok());
}

// `known` are names of prefixes of tenant "a" that live for an hour.
void RunStorm(EngineHarness& harness, const std::vector<std::string>& known) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 60;
  Engine& engine = harness.engine();
  NamedPrefixes& prefixes = engine.prefixes();
  base::Mutex mu;
  std::vector<std::string> names = known;  // guarded by mu; also of prefixes that are gone
  // Some prefixes live long, for on a busy machine the others end before they are ready, and even
  // these may. Guarded by mu, with their owners.
  std::vector<std::pair<ContextCaller, std::string>> long_lived;
  std::atomic<int64_t> num_created = 0, num_done = 0;
  std::vector<std::shared_ptr<CollectingSink>> sinks[kThreads];
  const auto run = [&](int thread) {
    std::mt19937 random(static_cast<uint32_t>(thread));
    const auto pick = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
    const ContextCaller caller{.tenant = std::string(1, static_cast<char>('a' + thread % 3))};
    const auto any_name = [&] {
      base::MutexLock lock(mu);
      return names.empty() ? std::string("prefixes/none")
                           : names[names.size() - 1 - pick(std::min<int>(9, names.size() - 1))];
    };
    for (int round = 0; round < kRounds; ++round) {
      PrefixParams params{.caller = caller, .content = RandomIds(20 + pick(100), pick(5))};
      const bool lives_long = round % 8 == 0;
      params.expiration = lives_long ? absl::Hours(1) : absl::Milliseconds(1 + pick(30));
      params.refresh_on_hit = pick(1) == 0;
      if (pick(1) == 0) params.allowed_tenants = {"*"};
      if (pick(3) == 0) params.request_id = std::string("id") + std::to_string(pick(20));
      const auto name = prefixes.Create(params, [&](auto) { num_done.fetch_add(1); });
      if (name.ok()) {
        num_created.fetch_add(1);
        base::MutexLock lock(mu);
        names.push_back(*name);
        if (lives_long) long_lived.emplace_back(caller, *name);
      }
      for (int i = pick(3); i > 0; --i) {
        GenerateParams request = GreedyParams(RandomIds(1 + pick(30), 9), 1 + pick(8));
        request.prefix_name = any_name();
        request.sched.tenant = caller.tenant;
        auto sink = std::make_shared<CollectingSink>();
        const auto handle = engine.Submit(request, sink);
        if (!handle.ok()) continue;
        sinks[thread].push_back(sink);
        if (pick(3) == 0) (*handle)->Cancel();
      }
      const std::string other = any_name();
      switch (pick(5)) {
        case 0:
          (void)prefixes.Delete(caller, other, "");
          break;
        case 1:
          (void)prefixes.Update(caller, {.name = other, .expiration = {{absl::Milliseconds(5)}}});
          break;
        case 2:
          (void)prefixes.List(caller, std::nullopt, 0, 5);
          break;
        case 3:
          num_created.fetch_add(1);
          prefixes.Warm(caller, other, [&](auto) { num_done.fetch_add(1); });
          break;
        case 4:
          engine.FlushPrefixCache([](auto) {});
          break;
        default:
          (void)prefixes.Get(caller, other);
          (void)engine.stats();
      }
      if (pick(2) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(pick(4)));
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(run, thread);
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_thread : sinks) {
    for (const auto& sink : of_thread) {
      ASSERT_TRUE(sink->WaitFinished());
      EXPECT_EQ(sink->num_after_finish(), 0);
    }
  }
  for (const std::string& name : known) (void)prefixes.Delete({.tenant = "a"}, name, "");
  for (const auto& [owner, name] : long_lived) (void)prefixes.Delete(owner, name, "");
  const auto expect_over = [&] {
    const auto is_over = [&] {
      const Stats stats = engine.stats();
      return stats.prefixes[0] + stats.prefixes[1] + stats.prefixes[3] == 0 &&
             stats.blocks_held == 0;
    };
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (!is_over() && absl::Now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(is_over());
  };
  expect_over();  // timers end the prefixes that nobody has deleted
  EXPECT_EQ(num_done.load(), num_created.load());
  ExpectPrefixServes(engine);
  expect_over();
  ASSERT_TRUE(engine.WaitIdle(absl::Seconds(30)).ok());
  EXPECT_EQ(testing::WhatIsKept(engine.stats()), "");
}

TEST(PrefixThreadsTest, EveryCallIsAnsweredAndNothingIsKept) {
  RunStorm(*EngineHarness::Fake({.num_blocks = 128}), {});
}

TEST(PrefixThreadsTest, SoItIsWithADisk) {
  const testing::TempDirectory directory;
  const testing::HarnessOptions options = {.num_blocks = 128, .kv_disk_dir = directory.path()};
  std::vector<std::string> known;
  auto harness = EngineHarness::Fake(options);
  for (uint32_t k = 0; k < 6; ++k) {
    std::atomic<bool> is_done = false;
    known.push_back(*harness->engine().prefixes().Create(
        {.caller = {.tenant = "a"}, .content = RandomIds(50, k), .allowed_tenants = {"*"}},
        [&](auto info) {
          EXPECT_TRUE(info.ok() && info->state == PrefixState::kReady);
          is_done = true;
          is_done.notify_one();
        }));
    is_done.wait(false);
  }
  harness.reset();
  harness = EngineHarness::Fake(options);
  EXPECT_EQ(harness->engine().stats().prefixes[3], 6);
  RunStorm(*harness, known);
  harness.reset();
  harness = EngineHarness::Fake(options);
  EXPECT_EQ(harness->engine().stats().prefixes, (std::array<int64_t, 4>{}));
}

TEST(PrefixThreadsTest, AnEngineMayEndWhilePrefixesAreComputed) {
  for (int i = 0; i < 6; ++i) {
    const testing::TempDirectory directory;
    std::atomic<int> num_done = 0;
    auto harness =
        EngineHarness::Fake({.num_blocks = 128, .kv_disk_dir = i % 2 == 0 ? "" : directory.path()});
    for (uint32_t k = 0; k < 4; ++k) {
      ASSERT_TRUE(harness->engine()
                      .prefixes()
                      .Create({.content = RandomIds(100, k)}, [&](auto) { num_done.fetch_add(1); })
                      .ok());
    }
    harness->Stop();
    EXPECT_EQ(num_done.load(), 4);
  }
}

}  // namespace
}  // namespace quire::engine
