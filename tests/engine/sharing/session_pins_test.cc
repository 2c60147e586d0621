// Tests sessions that begin on a named prefix, and pinned sessions, on a whole engine whose steps
// and clock the test moves.

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::GreedyParams;
using ::testing::HasSubstr;
using testing::RandomIds;

TokenIds JoinedIds(TokenIds ids, const TokenIds& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

class SessionPinsTest : public ::testing::Test {
 protected:
  static constexpr int32_t kSize = 16;

  SessionPinsTest() { Make({.num_blocks = 64}); }
  void Make(testing::HarnessOptions options) {
    options.block_size = kSize;
    options.clock = &clock_;
    engine_ = testing::EngineHarness::Stepped(options, &model_);
    clock_.Advance(absl::Seconds(1));
  }
  Sessions& sessions() { return engine_->sessions(); }
  void RunUntilIdle() {
    for (bool any = true; any;) {
      any = engine_->RunFrontend();
      any = engine_->Step() || any;
    }
  }
  std::string MakePrefix(const PromptContent& content, std::vector<std::string> allowed = {}) {
    const auto name = engine_->prefixes().Create(
        {.caller = {.tenant = "owner"}, .content = content, .allowed_tenants = std::move(allowed)},
        [](const auto&) {});
    EXPECT_TRUE(name.ok()) << name.status();
    RunUntilIdle();
    return *name;
  }
  std::string MakeSession(SessionParams params = {}) {
    const auto created = sessions().Create(params);
    EXPECT_TRUE(created.ok()) << created.status();
    return created.ok() ? created->name : "";
  }
  SessionInfo Info(const std::string& name, const std::string& tenant = "") {
    const auto info = sessions().Get({.tenant = tenant}, name);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? *info : SessionInfo();
  }
  GenerateParams Turn(const std::string& session, PromptContent prompt, int32_t max_tokens = 4) {
    GenerateParams params = GreedyParams({}, max_tokens);
    params.prompt = std::move(prompt);
    params.session.name = session;
    return params;
  }
  std::shared_ptr<CollectingSink> Begin(GenerateParams params) {
    auto sink = std::make_shared<CollectingSink>();
    const auto handle = engine_->Submit(std::move(params), sink);
    if (!handle.ok()) {
      sink->Finish(handle.status(), {});
    } else {
      handles_.push_back(*handle);
    }
    return sink;
  }
  std::shared_ptr<CollectingSink> Run(GenerateParams params) {
    const auto sink = Begin(std::move(params));
    RunUntilIdle();
    EXPECT_TRUE(sink->finished());
    return sink;
  }
  // The answer of a request over all tokens, which uses no cached block.
  TokenIds Alone(TokenIds whole, int32_t max_tokens = 4) {
    GenerateParams params = GreedyParams(std::move(whole), max_tokens);
    params.cache.bypass_read = params.cache.bypass_write = true;
    return Run(std::move(params))->sample().token_ids;
  }
  // A flush: requests that come later find nothing of what was computed, pinned or not.
  void FlushAll() {
    engine_->FlushPrefixCache([](const auto&) {});
    RunUntilIdle();
    EXPECT_EQ(engine_->stats().blocks_cached, 0);
  }

  testing::FakeClock clock_;
  testing::FakeModel* model_ = nullptr;
  std::unique_ptr<SteppedEngine> engine_;
  std::vector<std::shared_ptr<SubmittedRequest>> handles_;
};

TEST_F(SessionPinsTest, ASessionBeginsWithThePrefixesTokens) {
  const TokenIds ids = RandomIds(40, 1), more = RandomIds(20, 2);
  const std::string prefix = MakePrefix(ids);
  SessionParams params{.caller = {.tenant = "owner"}, .prefix_name = prefix};
  const std::string name = MakeSession(params);
  EXPECT_EQ(Info(name, "owner").num_tokens, 40);
  EXPECT_EQ(Info(name, "owner").prefix_name, prefix);
  GenerateParams turn = Turn(name, more);
  turn.sched.tenant = "owner";
  const auto first = Run(turn);
  ASSERT_TRUE(first->status().ok()) << first->status();
  EXPECT_EQ(first->summary().usage.prefix_tokens, 40);
  EXPECT_EQ(first->summary().usage.kept_tokens, 40);
  const TokenIds whole = JoinedIds(JoinedIds(ids, more), first->sample().token_ids);
  EXPECT_EQ(first->sample().token_ids, Alone(JoinedIds(ids, more)));
  // The prefix ends; the session has its tokens, and computes them again.
  ASSERT_TRUE(engine_->prefixes().Delete({.tenant = "owner"}, prefix, "").ok());
  turn.prompt = RandomIds(5, 3);
  const auto second = Run(turn);
  ASSERT_TRUE(second->status().ok()) << second->status();
  EXPECT_EQ(second->summary().usage.prefix_tokens, 0);
  EXPECT_EQ(second->sample().token_ids, Alone(JoinedIds(whole, RandomIds(5, 3))));
  EXPECT_EQ(sessions().Create(params).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionPinsTest, WhatFollowsAPrefixFollowsItAsAPromptDoes) {
  const std::string text = MakePrefix(std::string("The rules of the house:"), {"a"});
  for (const char* next : {" nobody may", "X"}) {
    const std::string name = MakeSession({.caller = {.tenant = "a"}, .prefix_name = text});
    GenerateParams turn = Turn(name, std::string(next));
    turn.sched.tenant = "a";
    GenerateParams request = GreedyParams({}, 4);
    request.prompt = std::string(next);
    request.prefix_name = text;
    request.sched.tenant = "a";
    const auto in_session = Run(turn), alone = Run(request);
    EXPECT_EQ(in_session->status(), alone->status());
    EXPECT_EQ(in_session->sample().token_ids, alone->sample().token_ids);
  }
  const std::string name = MakeSession({.caller = {.tenant = "a"}, .prefix_name = text});
  GenerateParams chat = Turn(name, ChatMessages{{.role = "user", .content = "x"}});
  chat.sched.tenant = "a";
  EXPECT_EQ(Run(chat)->status().code(), absl::StatusCode::kInvalidArgument);
  GenerateParams echo = Turn(name, std::string(" x"));
  echo.sched.tenant = "a";
  echo.output.echo = true;
  EXPECT_EQ(Run(echo)->status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(sessions().Create({.caller = {.tenant = "b"}, .prefix_name = text}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(SessionPinsTest, AConversationGoesOnBehindAPrefixOfMessages) {
  const ChatMessages first = {{.role = "user", .content = "rules"},
                              {.role = "assistant", .content = "yes"}};
  const std::string prefix = MakePrefix(first, {"*"});
  const std::string name = MakeSession({.prefix_name = prefix});
  const ChatMessages next = {{.role = "user", .content = "hm?"}};
  GenerateParams request = GreedyParams({}, 4);
  request.prompt = next;
  request.prefix_name = prefix;
  const auto alone = Run(request), turn = Run(Turn(name, next));
  ASSERT_TRUE(turn->status().ok()) << turn->status();
  EXPECT_EQ(turn->sample().token_ids, alone->sample().token_ids);
  EXPECT_EQ(turn->summary().usage.prompt_tokens, alone->summary().usage.prompt_tokens);
  EXPECT_TRUE(Run(Turn(name, next))->status().ok()) << "the session is a conversation";
}

TEST_F(SessionPinsTest, APinnedSessionIsInMemoryBetweenItsTurns) {
  const std::string name = MakeSession({.pinned = true});
  EXPECT_EQ(Info(name).num_pinned_blocks, 0);
  const TokenIds ids = RandomIds(70, 1);
  const auto first = Run(Turn(name, ids));
  ASSERT_TRUE(first->status().ok()) << first->status();
  EXPECT_EQ(Info(name).num_pinned_blocks, 5) << "73 tokens were computed";
  EXPECT_EQ(engine_->stats().blocks_pinned, 5);
  // These take all blocks that can be evicted.
  for (int i = 0; i < 5; ++i) Run(GreedyParams(RandomIds(400, 20 + i), 4));
  const auto second = Run(Turn(name, RandomIds(10, 2)));
  EXPECT_EQ(second->summary().usage.cached_tokens, 73);
  EXPECT_EQ(second->summary().usage.fork_recomputed_tokens, 0);
  EXPECT_EQ(engine_->stats().blocks_pinned, 6);
  // A turn that fails leaves the pin as it was.
  const auto cancelled = Begin(Turn(name, RandomIds(10, 3), 50));
  engine_->RunFrontend();
  engine_->Step();
  EXPECT_GT(Info(name).num_pinned_blocks, 6) << "the turn may need more";
  handles_.back()->Cancel();
  RunUntilIdle();
  EXPECT_EQ(cancelled->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Info(name).num_pinned_blocks, 6);
  EXPECT_EQ(engine_->stats().blocks_pinned, 6);
  // What the turn reserved beyond that is given back: 26 of the 32 blocks that may be pinned are
  // left.
  const std::string other = MakeSession({.pinned = true});
  EXPECT_TRUE(Run(Turn(other, RandomIds(26 * kSize - 4, 4)))->status().ok());
  ASSERT_TRUE(sessions().Close({}, other).ok());
  ASSERT_TRUE(sessions().Close({}, name).ok());
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);
  EXPECT_EQ(engine_->stats().blocks_held, 0);
  EXPECT_EQ(engine_->stats().sessions.turns, (std::array<int64_t, 3>{3, 1, 0}));
}

TEST_F(SessionPinsTest, ThePinnedShareHoldsForSessionsToo) {
  const std::string name = MakeSession({.pinned = true});
  // Half of 64 blocks may be pinned.
  const auto most = Run(Turn(name, RandomIds(32 * kSize - 10, 1), 10));
  ASSERT_TRUE(most->status().ok()) << most->status();
  const std::string other = MakeSession({.pinned = true});
  const auto refused = Run(Turn(other, RandomIds(20, 2)));
  EXPECT_EQ(refused->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused->status().message()),
              HasSubstr("session: 2 blocks wanted, 32 are pinned, and 32 may be"));
  EXPECT_EQ(Info(other).num_tokens, 0);
  const auto never = Run(Turn(MakeSession({.pinned = true}), RandomIds(33 * kSize, 3)));
  EXPECT_EQ(never->status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(sessions().Close({}, name).ok());
  RunUntilIdle();
  EXPECT_TRUE(Run(Turn(other, RandomIds(20, 2)))->status().ok());
}

TEST_F(SessionPinsTest, ASessionExpiresWithoutACall) {
  const std::string name = MakeSession({.pinned = true, .ttl = absl::Seconds(60)});
  ASSERT_TRUE(Run(Turn(name, RandomIds(30, 1)))->status().ok());
  EXPECT_EQ(engine_->stats().sessions.num_open, 1);
  clock_.Advance(absl::Seconds(59));
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 3);
  clock_.Advance(absl::Seconds(1));
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);
  EXPECT_EQ(engine_->stats().sessions.num_open, 0);
}

TEST_F(SessionPinsTest, ASessionThatIsClosedInATurnIsUnpinnedAfterIt) {
  const std::string name = MakeSession({.pinned = true});
  ASSERT_TRUE(Run(Turn(name, RandomIds(30, 1)))->status().ok());
  const auto turn = Begin(Turn(name, RandomIds(30, 2), 20));
  engine_->RunFrontend();
  engine_->Step();
  ASSERT_TRUE(sessions().Close({}, name).ok());
  RunUntilIdle();
  EXPECT_TRUE(turn->finished());
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);
  EXPECT_EQ(engine_->stats().blocks_held, 0);
}

TEST_F(SessionPinsTest, TheForksOfAPinnedSessionAreInMemoryToo) {
  const std::string name = MakeSession({.pinned = true});
  const TokenIds ids = RandomIds(70, 1);
  const auto first = Run(Turn(name, ids));
  ASSERT_TRUE(first->status().ok()) << first->status();
  const TokenIds whole = JoinedIds(ids, first->sample().token_ids);
  const auto forks = *sessions().Fork({.name = name, .count = 2});
  const auto early = sessions().Fork({.name = name, .at_token = 40})->front();
  const auto loose = sessions().Fork({.name = name, .pinned = false})->front();
  EXPECT_TRUE(forks[0].pinned && forks[1].pinned && early.pinned && !loose.pinned);
  EXPECT_EQ(forks[0].num_pinned_blocks, 5);
  EXPECT_EQ(early.num_pinned_blocks, 3);
  EXPECT_EQ(loose.num_pinned_blocks, 0);
  ASSERT_TRUE(sessions().Close({}, name).ok()) << "at once";
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 5);
  EXPECT_EQ(engine_->tenant_usage("", {}).charged_blocks, 5) << "each block is charged once";
  for (int i = 0; i < 5; ++i) Run(GreedyParams(RandomIds(400, 20 + i), 4));
  for (uint32_t i = 0; i < 2; ++i) {
    const auto turn = Run(Turn(forks[i].name, RandomIds(10, 2 + i)));
    EXPECT_GE(turn->summary().usage.cached_tokens, 73);
    EXPECT_EQ(turn->sample().token_ids, Alone(JoinedIds(whole, RandomIds(10, 2 + i))));
    EXPECT_EQ(Info(forks[i].name).num_pinned_blocks, 6);
  }
  const auto turn = Run(Turn(early.name, RandomIds(10, 4)));
  EXPECT_EQ(turn->summary().usage.cached_tokens, 40);
  EXPECT_EQ(turn->sample().token_ids,
            Alone(JoinedIds({whole.begin(), whole.begin() + 40}, RandomIds(10, 4))));
  for (const SessionInfo& fork : {forks[0], forks[1], early, loose}) {
    ASSERT_TRUE(sessions().Close({}, fork.name).ok());
  }
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_held, 0);
  // The ledger has nothing of them: all that may be pinned is free.
  EXPECT_TRUE(
      Run(Turn(MakeSession({.pinned = true}), RandomIds(32 * kSize - 4, 4)))->status().ok());
}

TEST_F(SessionPinsTest, ThePinnedShareHoldsForForksToo) {
  const std::string name = MakeSession({.pinned = true});
  ASSERT_TRUE(Run(Turn(name, RandomIds(10 * kSize - 4, 1)))->status().ok());
  EXPECT_EQ(sessions().Fork({.name = name, .count = 3}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->stats().sessions.num_open, 1);
  ASSERT_TRUE(sessions().Fork({.name = name, .count = 2}).ok());
  const absl::Status more = sessions().Fork({.name = name}).status();
  EXPECT_EQ(more.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(more.message()),
              HasSubstr("session: 10 blocks wanted, 30 are pinned, and 32 may be"));
  EXPECT_TRUE(sessions().Fork({.name = name, .pinned = false}).ok());
  // Forks of a session that is not pinned may be, from their first turn on.
  const std::string plain = MakeSession();
  ASSERT_TRUE(Run(Turn(plain, RandomIds(12, 2)))->status().ok());
  const auto fork = sessions().Fork({.name = plain, .pinned = true})->front();
  EXPECT_TRUE(fork.pinned);
  EXPECT_EQ(fork.num_pinned_blocks, 0);
  ASSERT_TRUE(Run(Turn(fork.name, RandomIds(8, 3)))->status().ok());
  EXPECT_EQ(Info(fork.name).num_pinned_blocks, 2);
}

TEST_F(SessionPinsTest, AForkWhosePartsAreGoneHoldsNothing) {
  Make({.num_blocks = 64,
        .layer_patterns = {{}, kernels::AttentionPattern::Window(20)},
        .window_blocks = 24});
  const std::string name = MakeSession({.pinned = true});
  ASSERT_TRUE(Run(Turn(name, RandomIds(100, 1)))->status().ok());
  for (int i = 0; i < 5; ++i) Run(GreedyParams(RandomIds(300, 20 + i), 4));
  const auto early = sessions().Fork({.name = name, .at_token = 30})->front();
  EXPECT_EQ(early.num_pinned_blocks, 2);
  RunUntilIdle();
  EXPECT_TRUE(Info(early.name).pinned);
  EXPECT_EQ(Info(early.name).num_pinned_blocks, 0);
  const auto late = sessions().Fork({.name = name})->front();
  RunUntilIdle();
  EXPECT_EQ(Info(late.name).num_pinned_blocks, 7);
  // The ledger has 14 of the 32 blocks that may be pinned.
  EXPECT_TRUE(
      Run(Turn(MakeSession({.pinned = true}), RandomIds(18 * kSize - 4, 4)))->status().ok());
}

// Sessions against a model that knows only their tokens. QUIRE_SESSION_OPERATIONS: how many.
TEST_F(SessionPinsTest, RandomOperationsKeepTokensAndPins) {
  struct Known {
    TokenIds tokens;
    bool pinned = false;
    int64_t num_pinned_tokens = 0;
    int64_t num_pinned() const { return (num_pinned_tokens + kSize - 1) / kSize; }  // blocks
  };
  std::map<std::string, Known> model;
  const char* const given = std::getenv("QUIRE_SESSION_OPERATIONS");
  const int num_operations = given == nullptr ? 400 : std::atoi(given);
  uint64_t state = 7;
  const auto draw = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  const std::string prefix = MakePrefix(RandomIds(40, 99), {"*"});
  int num_turns = 0, num_refused = 0, num_forks_pinned = 0;
  for (int i = 0; i < num_operations; ++i) {
    const uint64_t what = draw(10);
    auto it = model.begin();
    if (!model.empty()) std::advance(it, draw(model.size()));
    if (model.size() < 2 || (what == 0 && model.size() < 6)) {
      SessionParams params{.pinned = draw(2) == 0};
      const bool on_prefix = draw(3) == 0;
      if (on_prefix) params.prefix_name = prefix;
      model[MakeSession(params)] = {.tokens = on_prefix ? RandomIds(40, 99) : TokenIds(),
                                    .pinned = params.pinned};
    } else if (what == 1) {
      ASSERT_TRUE(sessions().Close({}, it->first).ok());
      model.erase(it);
    } else if (what == 2) {
      const Known& parent = it->second;
      const auto at = static_cast<int64_t>(draw(parent.tokens.size() + 1));
      SessionFork fork{.name = it->first, .at_token = at};
      if (draw(3) == 0) fork.pinned = draw(2) == 0;
      const bool pinned = fork.pinned.value_or(parent.pinned);
      const auto children = sessions().Fork(fork);
      if (children.ok()) {
        Known& child = model[children->front().name];
        child.tokens.assign(parent.tokens.begin(), parent.tokens.begin() + at);
        child.pinned = pinned;
        if (pinned) child.num_pinned_tokens = std::min(at, parent.num_pinned_tokens);
        num_forks_pinned += child.num_pinned_tokens > 0 ? 1 : 0;
      } else {
        ASSERT_TRUE(pinned && absl::IsResourceExhausted(children.status())) << children.status();
      }
    } else if (what == 3) {
      FlushAll();
    } else {
      const TokenIds more = RandomIds(static_cast<int>(1 + draw(40)), 1000 + i);
      const auto sink = Begin(Turn(it->first, more, 4));
      engine_->RunFrontend();
      const bool cancels = what == 4;
      if (cancels) {
        engine_->Step();
        handles_.back()->Cancel();
      }
      RunUntilIdle();
      if (sink->status().ok()) {
        ++num_turns;
        const TokenIds whole = JoinedIds(it->second.tokens, more);
        ASSERT_EQ(sink->sample().token_ids, Alone(whole)) << "operation " << i;
        it->second.tokens = JoinedIds(whole, sink->sample().token_ids);
        // The token drawn last was not computed.
        if (it->second.pinned) it->second.num_pinned_tokens = std::ssize(it->second.tokens) - 1;
      } else {
        ++num_refused;
        ASSERT_TRUE(cancels || absl::IsResourceExhausted(sink->status()) ||
                    absl::IsInvalidArgument(sink->status()))
            << sink->status();
      }
      handles_.clear();
    }
    RunUntilIdle();
    int64_t pinned = 0;
    for (const auto& [name, known] : model) {
      const SessionInfo info = Info(name);
      ASSERT_EQ(info.num_tokens, std::ssize(known.tokens)) << "operation " << i;
      ASSERT_EQ(info.num_pinned_blocks, known.num_pinned()) << "operation " << i;
      pinned += known.num_pinned();
    }
    const int64_t held = engine_->stats().blocks_pinned;
    ASSERT_LE(held, 3 + pinned) << "operation " << i;
    ASSERT_GE(held, 3);
    ASSERT_EQ(engine_->stats().blocks_held, held);
  }
  EXPECT_GT(num_turns, num_operations / 8);
  EXPECT_GT(num_refused, 0);
  EXPECT_GT(num_forks_pinned, 0);
  for (const auto& [name, known] : model) ASSERT_TRUE(sessions().Close({}, name).ok());
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 3) << "the prefix's";
}

}  // namespace
}  // namespace quire::engine
