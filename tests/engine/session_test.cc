// Tests of turns on whole engines: a session's turn is the request over all its tokens, whatever
// happens to the turns before it.

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/step_gate.h"

namespace quire::engine {
namespace {

using absl::StatusCode;
using testing::CollectingSink;
using testing::EngineHarness;
using testing::GreedyParams;
using testing::HarnessOptions;
using ::testing::HasSubstr;
using testing::RandomIds;
using testing::StepGate;

std::string CreateSession(EngineHarness& harness, const SessionParams& params = {}) {
  const auto created = harness.engine().sessions().Create(params);
  EXPECT_TRUE(created.ok()) << created.status();
  return created.ok() ? created->name : "";
}

SessionInfo InfoOf(EngineHarness& harness, const std::string& name) {
  const auto info = harness.engine().sessions().Get({}, name);
  EXPECT_TRUE(info.ok()) << info.status();
  return info.ok() ? *info : SessionInfo();
}

std::string ForkSession(EngineHarness& harness, const std::string& name, int64_t at_token) {
  const auto children = harness.engine().sessions().Fork({.name = name, .at_token = at_token});
  EXPECT_TRUE(children.ok()) << children.status();
  return children.ok() ? children->front().name : "";
}

GenerateParams Turn(const std::string& session, TokenIds prompt, int32_t max_tokens,
                    std::optional<uint64_t> seed = {}) {
  GenerateParams params = GreedyParams(std::move(prompt), max_tokens);
  params.session.name = session;
  if (seed.has_value()) {
    params.sampling.temperature = 1.0f;
    params.sampling.seed = seed;
  }
  return params;
}

// Returns a turn as `params` in `session`, of which the tokens `arrived` came. No text came.
GenerateParams ResumedTurn(EngineHarness& harness, const std::string& session,
                           GenerateParams params, TokenIds arrived) {
  params.session = {.name = session, .etag = InfoOf(harness, session).etag};
  if (!params.sampling.seed.has_value()) params.sampling.seed = 0;
  params.resume = ResumeParams{.token_ids = {std::move(arrived)},
                               .text_bytes = {0},
                               .model_digest = "digest",
                               .numerics = "numerics"};
  return params;
}

// Returns the answer to the same request without a session.
CollectingSink::Sample Alone(EngineHarness& harness, GenerateParams params, TokenIds whole) {
  params.session = {};
  params.prompt = std::move(whole);
  params.cache.bypass_read = true;
  params.cache.bypass_write = true;
  return harness.Generate(std::move(params));
}

void Add(TokenIds& ids, const TokenIds& more) { ids.insert(ids.end(), more.begin(), more.end()); }

class SessionTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Sampled, SessionTest, ::testing::Bool());

TEST_P(SessionTest, AConversationIsOneRequestOverAllItsTokens) {
  const auto harness = EngineHarness::TinyLlama();
  const std::string name = CreateSession(*harness);
  TokenIds ids;
  for (uint32_t turn = 0; turn < 6; ++turn) {
    const auto seed = GetParam() ? std::optional<uint64_t>(turn) : std::nullopt;
    const TokenIds prompt = RandomIds(1 + 7 * turn, turn);
    const GenerateParams params = Turn(name, prompt, 20, seed);
    const auto sink = harness->Submit(params);
    ASSERT_TRUE(sink->WaitFinished());
    ASSERT_TRUE(sink->status().ok()) << sink->status();
    const Usage usage = sink->summary().usage;
    EXPECT_EQ(usage.kept_tokens, std::ssize(ids));
    EXPECT_EQ(usage.cached_tokens, std::max<int64_t>(0, std::ssize(ids) - 1));
    EXPECT_EQ(usage.fork_recomputed_tokens, 0);
    Add(ids, prompt);
    testing::ExpectSame(sink->sample(), Alone(*harness, params, ids));
    Add(ids, sink->sample().token_ids);
    const SessionInfo info = InfoOf(*harness, name);
    EXPECT_EQ(info.num_tokens, std::ssize(ids));
    EXPECT_EQ(info.num_turns, turn + 1);
  }
  harness->ExpectIdleIsEmpty();
}

TEST_P(SessionTest, AForkAtAnyTokenGoesOnFromThere) {
  const auto harness = EngineHarness::TinyLlama();
  const std::string name = CreateSession(*harness);
  const TokenIds prompt = RandomIds(13, 1);
  TokenIds ids = prompt;
  Add(ids, harness->Generate(Turn(name, prompt, 12)).token_ids);
  for (int64_t at = 0; at <= std::ssize(ids); ++at) {
    SCOPED_TRACE(at);
    const std::string child = ForkSession(*harness, name, at);
    TokenIds whole(ids.begin(), ids.begin() + at);
    // Without a prompt, the child draws another continuation of the same tokens.
    const TokenIds more = at % 2 == 0 ? RandomIds(3, 2) : TokenIds();
    Add(whole, more);
    const auto seed = GetParam() ? std::optional<uint64_t>(at) : std::nullopt;
    const GenerateParams params = Turn(child, more, 5, seed);
    testing::ExpectSame(harness->Generate(params), Alone(*harness, params, whole));
  }
  EXPECT_EQ(InfoOf(*harness, name).num_tokens, std::ssize(ids)) << "the parent has what it had";
  const GenerateParams params = Turn(name, RandomIds(2, 3), 5);
  Add(ids, RandomIds(2, 3));
  testing::ExpectSame(harness->Generate(params), Alone(*harness, params, ids));
}

TEST(SessionTurnTest, AppendedTokensArePartOfTheNextTurn) {
  const auto harness = EngineHarness::TinyLlama();
  Sessions& sessions = harness->engine().sessions();
  const std::string name = CreateSession(*harness);
  const TokenIds first = RandomIds(20, 1), second = RandomIds(5, 2);
  ASSERT_TRUE(sessions.Append({.name = name, .content = first}).ok());
  const auto appended = sessions.Append({.name = name, .content = second});
  ASSERT_TRUE(appended.ok());
  EXPECT_EQ(appended->kept_tokens, 20);
  EXPECT_EQ(appended->session.num_tokens, 25);
  TokenIds whole = first;
  Add(whole, second);
  const GenerateParams params = Turn(name, {}, 5);
  testing::ExpectSame(harness->Generate(params), Alone(*harness, params, whole));
}

TEST(SessionTurnTest, AComputedAppendIsCachedAndDrawsNothing) {
  const auto harness = EngineHarness::TinyLlama();
  const std::string name = CreateSession(*harness);
  GenerateParams append = Turn(name, RandomIds(40, 1), 7);
  append.session.computes_only = true;
  append.session.append_id = "a";
  const auto sink = harness->Submit(append);
  ASSERT_TRUE(sink->WaitFinished());
  ASSERT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->sample().text, "");
  EXPECT_EQ(InfoOf(*harness, name).num_tokens, 40);
  EXPECT_EQ(InfoOf(*harness, name).num_turns, 0);
  const auto found = harness->engine().sessions().FindAppend(
      {.name = name, .content = RandomIds(40, 1), .request_id = "a"});
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->session.num_tokens, 40);

  const auto turn = harness->Submit(Turn(name, {}, 5));
  ASSERT_TRUE(turn->WaitFinished());
  EXPECT_EQ(turn->summary().usage.cached_tokens, 39);
  EXPECT_EQ(turn->summary().usage.fork_recomputed_tokens, 0);
}

// Cuts a turn behind each of its tokens. Each cut is resumed in a session as the first one was.
TEST_P(SessionTest, AResumedTurnEndsAsAWholeOne) {
  const auto harness = EngineHarness::TinyLlama();
  const std::string name = CreateSession(*harness);
  harness->Generate(Turn(name, RandomIds(30, 1), 10));
  const std::string undisturbed = ForkSession(*harness, name, 40);
  const auto seed = GetParam() ? std::optional<uint64_t>(7) : std::nullopt;
  const GenerateParams params = Turn(undisturbed, RandomIds(9, 2), 12, seed);
  const CollectingSink::Sample whole = harness->Generate(params);
  const CollectingSink::Sample next = harness->Generate(Turn(undisturbed, RandomIds(4, 3), 5));
  for (size_t cut = 0; cut <= whole.token_ids.size(); ++cut) {
    SCOPED_TRACE(cut);
    const std::string child = ForkSession(*harness, name, 40);
    const TokenIds arrived(whole.token_ids.begin(),
                           whole.token_ids.begin() + static_cast<int64_t>(cut));
    const auto sink = harness->Submit(ResumedTurn(*harness, child, params, arrived));
    ASSERT_TRUE(sink->WaitFinished());
    ASSERT_TRUE(sink->status().ok()) << sink->status();
    TokenIds ids = arrived;
    Add(ids, sink->sample().token_ids);
    EXPECT_EQ(ids, whole.token_ids);
    EXPECT_EQ(sink->sample().text, whole.text);
    EXPECT_EQ(sink->sample().finish_reason, whole.finish_reason);
    EXPECT_EQ(sink->summary().usage.resumed_tokens, cut);
    EXPECT_EQ(sink->summary().usage.kept_tokens, 40);
    EXPECT_EQ(InfoOf(*harness, child).num_tokens, 40 + 9 + 12);
    testing::ExpectSame(harness->Generate(Turn(child, RandomIds(4, 3), 5)), next);
  }
  harness->ExpectIdleIsEmpty();
}

// The server of a turn is gone. Another one makes its session again and goes on with the turn.
TEST_P(SessionTest, ATurnIsResumedOnAnotherServer) {
  const auto first = EngineHarness::TinyLlama();
  const std::string name = CreateSession(*first);
  first->Generate(Turn(name, RandomIds(30, 1), 10));
  const auto known = first->engine().sessions().GetWithContent({}, name);
  ASSERT_TRUE(known.ok()) << known.status();
  const auto seed = GetParam() ? std::optional<uint64_t>(7) : std::nullopt;
  const GenerateParams params = Turn(name, RandomIds(9, 2), 12, seed);
  const CollectingSink::Sample whole = first->Generate(params);
  const CollectingSink::Sample next = first->Generate(Turn(name, RandomIds(4, 3), 5));

  const auto second = EngineHarness::TinyLlama();
  for (const bool pinned : {false, true}) {
    const std::string again = CreateSession(*second, {.pinned = pinned, .content = known->content});
    TokenIds ids(whole.token_ids.begin(), whole.token_ids.begin() + 7);
    const auto sink = second->Submit(ResumedTurn(*second, again, params, ids));
    ASSERT_TRUE(sink->WaitFinished());
    ASSERT_TRUE(sink->status().ok()) << sink->status();
    Add(ids, sink->sample().token_ids);
    EXPECT_EQ(ids, whole.token_ids);
    EXPECT_EQ(sink->sample().text, whole.text);
    EXPECT_EQ(InfoOf(*second, again).num_pinned_blocks, pinned ? 4 : 0) << "of 60 tokens";
    testing::ExpectSame(second->Generate(Turn(again, RandomIds(4, 3), 5)), next);
  }
}

TEST(SessionTurnTest, AResumedTurnFindsTheSessionAsItWasOrIsRefused) {
  const auto harness = EngineHarness::Fake();
  const std::string name = CreateSession(*harness);
  const GenerateParams params = Turn(name, RandomIds(9, 2), 12, 7);
  GenerateParams resumed = ResumedTurn(*harness, name, params, {65, 66});
  harness->Generate(params);  // the end of the turn got lost, not the turn
  const auto aborted = harness->engine().Submit(resumed, std::make_shared<CollectingSink>());
  EXPECT_EQ(aborted.status().code(), StatusCode::kAborted);
  EXPECT_EQ(InfoOf(*harness, name).num_tokens, 21);

  resumed.session.etag.clear();
  const auto sink = harness->Submit(resumed);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sink->status().message()), HasSubstr("session_etag: want"));
  EXPECT_EQ(InfoOf(*harness, name).num_tokens, 21);
}

// Cancels a turn after each number of its deltas, and in the frontend.
TEST(SessionTurnTest, ACancelledTurnLeavesTheSessionAsItWas) {
  const auto harness = EngineHarness::Fake();
  const std::string name = CreateSession(*harness);
  TokenIds ids = RandomIds(20, 1);
  Add(ids, harness->Generate(Turn(name, ids, 10)).token_ids);
  const SessionInfo before = InfoOf(*harness, name);
  const auto expect_same = [&] {
    const SessionInfo after = InfoOf(*harness, name);
    EXPECT_EQ(after.etag, before.etag);
    EXPECT_EQ(after.num_tokens, std::ssize(ids));
    EXPECT_EQ(after.num_turns, 1);
    EXPECT_FALSE(after.in_turn);
  };
  StepGate gate(*harness);
  for (int num_steps = 0; num_steps < 6; ++num_steps) {
    const auto sink = harness->Submit(Turn(name, RandomIds(70, 2), 50));
    for (int step = 0; step < num_steps; ++step) {
      ASSERT_TRUE(gate.WaitForStep());
      gate.LetGo();
    }
    ASSERT_TRUE(gate.WaitForStep());
    EXPECT_TRUE(InfoOf(*harness, name).in_turn);
    harness->handles.back()->Cancel();
    gate.LetGo();
    ASSERT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), StatusCode::kCancelled);
    expect_same();
  }
  gate.Open();
  GenerateParams refused = Turn(name, RandomIds(5, 2), 5);
  refused.sampling.top_p = 2.0f;
  const auto sink = harness->Submit(refused);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), StatusCode::kInvalidArgument);
  expect_same();

  const GenerateParams params = Turn(name, RandomIds(4, 3), 5);
  Add(ids, RandomIds(4, 3));
  EXPECT_EQ(harness->Generate(params).token_ids, Alone(*harness, params, ids).token_ids);
}

TEST(SessionTurnTest, AFailedStepLeavesTheSessionAsItWas) {
  const auto harness = EngineHarness::Fake();
  const std::string name = CreateSession(*harness);
  harness->Generate(Turn(name, RandomIds(20, 1), 10));
  harness->fake()->fail_at_forward = harness->fake()->num_forwards + 3;
  const auto sink = harness->Submit(Turn(name, RandomIds(5, 2), 10));
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), StatusCode::kInternal);
  EXPECT_EQ(InfoOf(*harness, name).num_tokens, 30);
  EXPECT_EQ(harness->Generate(Turn(name, {}, 5)).token_ids.size(), 5);
}

TEST(SessionTurnTest, ASecondTurnIsAbortedAndTheFirstGoesOn) {
  const auto harness = EngineHarness::Fake();
  const std::string name = CreateSession(*harness);
  StepGate gate(*harness);
  const auto first = harness->Submit(Turn(name, RandomIds(20, 1), 5));
  ASSERT_TRUE(gate.WaitForStep());
  const auto second =
      harness->engine().Submit(Turn(name, RandomIds(20, 2), 5), std::make_shared<CollectingSink>());
  EXPECT_EQ(second.status().code(), StatusCode::kAborted);
  EXPECT_EQ(InfoOf(*harness, ForkSession(*harness, name, 0)).num_tokens, 0);
  gate.Open();
  ASSERT_TRUE(first->WaitFinished());
  EXPECT_TRUE(first->status().ok());
  EXPECT_EQ(InfoOf(*harness, name).num_tokens, 25);
}

TEST(SessionTurnTest, CloseCancelsTheTurn) {
  const auto harness = EngineHarness::Fake();
  const std::string name = CreateSession(*harness);
  StepGate gate(*harness);
  const auto sink = harness->Submit(Turn(name, RandomIds(20, 1), 100));
  ASSERT_TRUE(gate.WaitForStep());
  ASSERT_TRUE(harness->engine().sessions().Close({}, name).ok());
  gate.Open();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), StatusCode::kCancelled);
  harness->ExpectIdleIsEmpty();
}

// Looks at the session when the end of the turn comes.
class LookingSink final : public TokenSink {
 public:
  LookingSink(EngineHarness& harness, std::string name)
      : harness_(harness), name_(std::move(name)) {}

  bool CanTake(int32_t) const override { return true; }
  void Put(TokenDelta delta) override { EXPECT_TRUE(delta.token_ids.empty()) << "not wanted"; }
  void Finish(const absl::Status& status, const RequestSummary&) override {
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_FALSE(finished_) << "the end comes once";
    seen_ = InfoOf(harness_, name_);
    finished_ = true;
  }
  bool finished() const { return finished_; }
  const SessionInfo& seen() const { return seen_; }

 private:
  EngineHarness& harness_;
  const std::string name_;
  SessionInfo seen_;
  std::atomic<bool> finished_ = false;
};

TEST(SessionTurnTest, TheSessionHasTheTurnBeforeItsEndIsSent) {
  const auto harness = EngineHarness::Fake();
  const std::string name = CreateSession(*harness);
  const auto sink = std::make_shared<LookingSink>(*harness, name);
  GenerateParams params = Turn(name, RandomIds(20, 1), 5);
  params.output = {};
  ASSERT_TRUE(harness->engine().Submit(params, sink).ok());
  ASSERT_TRUE(harness->engine().WaitIdle(absl::Seconds(30)).ok());
  while (!sink->finished()) std::this_thread::yield();
  EXPECT_EQ(sink->seen().num_tokens, 25);
  EXPECT_FALSE(sink->seen().in_turn);
}

TEST(SessionTurnTest, WhatATurnCannotHaveIsRefusedByName) {
  const auto harness = EngineHarness::Fake();
  const std::string name = CreateSession(*harness);
  const auto error = [&](auto change) {
    GenerateParams params = Turn(name, RandomIds(5, 1), 5);
    change(params);
    const auto sink = harness->Submit(params);
    EXPECT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), StatusCode::kInvalidArgument);
    return std::string(sink->status().message());
  };
  EXPECT_THAT(error([](auto& p) { p.sampling.n = 2; }), HasSubstr("sampling.n: want 1"));
  EXPECT_THAT(error([](auto& p) { p.sampling.best_of = 2; }),
              HasSubstr("sampling.best_of: want none in a session"));
  EXPECT_THAT(error([](auto& p) { p.sampling.n = 0; }), HasSubstr("sampling.n: want 1"));
  EXPECT_THAT(error([](auto& p) { p.cache.window_tokens = 64; }),
              HasSubstr("cache.window_tokens: want 0"));
  EXPECT_THAT(error([](auto& p) { p.cache.salt = "s"; }), HasSubstr("cache.salt: want none"));
  EXPECT_THAT(error([](auto& p) { p.cache.part = "s"; }), HasSubstr("sched.tenant: want none"));
  EXPECT_THAT(error([](auto& p) { p.continuations = {TokenIds{1}}; }),
              HasSubstr("continuations: want none"));
  EXPECT_THAT(error([](auto& p) { p.prompt = TokenIds(512, 1); }),
              HasSubstr("prompt: want at most 511 tokens"));
  EXPECT_THAT(error([](auto& p) { p.prompt = TokenIds{}; }), HasSubstr("prompt: want one of"));
  EXPECT_EQ(InfoOf(*harness, name).num_tokens, 0);
  const auto unknown = harness->engine().Submit(Turn("sessions/none", RandomIds(5, 1), 5),
                                                std::make_shared<CollectingSink>());
  EXPECT_EQ(unknown.status().code(), StatusCode::kNotFound);
}

TEST(SessionTurnTest, SessionsShareCachedTokensOnlyWithTheirSalt) {
  const auto harness = EngineHarness::Fake();
  const TokenIds prompt = RandomIds(40, 1);
  const auto cached = [&](const std::string& salt) {
    const auto sink = harness->Submit(Turn(CreateSession(*harness, {.salt = salt}), prompt, 3));
    EXPECT_TRUE(sink->WaitFinished());
    return sink->summary().usage.cached_tokens;
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(cached("a"), 39);
}

TEST(SessionTurnTest, WhatWasEvictedIsComputedAgainAndSaid) {
  const auto harness = EngineHarness::TinyLlama();
  const std::string name = CreateSession(*harness);
  TokenIds ids = RandomIds(50, 1);
  Add(ids, harness->Generate(Turn(name, ids, 10)).token_ids);
  harness->engine().FlushPrefixCache([](absl::StatusOr<int64_t>) {});
  const GenerateParams params = Turn(name, RandomIds(3, 2), 5);
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->summary().usage.fork_recomputed_tokens, 59);
  Add(ids, RandomIds(3, 2));
  testing::ExpectSame(sink->sample(), Alone(*harness, params, ids));
}

TEST(SessionTurnTest, AForkWhereAWindowDroppedBlocksRecomputesThem) {
  HarnessOptions options{.window_blocks = 10};
  options.layer_patterns[0] = kernels::AttentionPattern::Window(24);
  const auto harness = EngineHarness::TinyLlama(options);
  const std::string name = CreateSession(*harness);
  TokenIds ids = RandomIds(100, 1);
  Add(ids, harness->Generate(Turn(name, ids, 250)).token_ids);
  const std::string child = ForkSession(*harness, name, 40);
  const GenerateParams params = Turn(child, RandomIds(3, 2), 8);
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  ASSERT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_GT(sink->summary().usage.fork_recomputed_tokens, 0);
  EXPECT_EQ(sink->summary().usage.fork_recomputed_tokens, 40 - sink->summary().usage.cached_tokens);
  ids.resize(40);
  Add(ids, RandomIds(3, 2));
  testing::ExpectSame(sink->sample(), Alone(*harness, params, ids));
}

TEST_P(SessionTest, PreemptedTurnsComeOutTheSame) {
  const auto harness = EngineHarness::TinyLlama({.num_blocks = 24, .max_num_seqs = 4});
  std::vector<std::string> names;
  std::vector<TokenIds> ids(4);
  for (uint32_t k = 0; k < 4; ++k) names.push_back(CreateSession(*harness));
  for (uint32_t turn = 0; turn < 3; ++turn) {
    std::vector<GenerateParams> all;
    for (uint32_t k = 0; k < 4; ++k) {
      const auto seed = GetParam() ? std::optional<uint64_t>(turn * 4 + k) : std::nullopt;
      all.push_back(Turn(names[k], RandomIds(5, turn * 4 + k), 60, seed));
    }
    const auto sinks = harness->SubmitTogether(all);
    for (uint32_t k = 0; k < 4; ++k) {
      ASSERT_TRUE(sinks[k]->WaitFinished());
      ASSERT_TRUE(sinks[k]->status().ok()) << sinks[k]->status();
      Add(ids[k], RandomIds(5, turn * 4 + k));
      testing::ExpectSame(sinks[k]->sample(), Alone(*harness, all[k], ids[k]));
      Add(ids[k], sinks[k]->sample().token_ids);
    }
  }
  EXPECT_GT(harness->engine().stats().preemptions, 0);
}

// Each thread uses the sessions of all others, in every state.
TEST(SessionTurnTest, EightThreadsUseTheSameSessions) {
  testing::FakeClock clock;
  const auto harness = EngineHarness::Fake({.num_blocks = 64, .max_num_seqs = 8, .clock = &clock});
  Sessions& sessions = harness->engine().sessions();
  std::vector<std::string> names(4);
  for (std::string& name : names) name = CreateSession(*harness);
  base::Mutex mu;
  const auto pick = [&](uint32_t i) {
    base::MutexLock lock(mu);
    return names[i % names.size()];
  };
  std::atomic<int64_t> num_turns = 0, num_aborted = 0;
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint32_t i = 0; i < 40; ++i) {
        const std::string name = pick(i + thread);
        const uint32_t what = (i * 7 + thread) % 8;
        if (what == 0) {
          const auto created = sessions.Create({});
          ASSERT_TRUE(created.ok());
          ASSERT_TRUE(sessions.Close({}, name).ok());
          base::MutexLock lock(mu);
          names[(i + thread) % names.size()] = created->name;
        } else if (what == 1) {
          static_cast<void>(sessions.Append({.name = name, .content = RandomIds(3, i)}));
        } else if (what == 2) {
          const auto children = sessions.Fork({.name = name, .count = 2});
          if (!children.ok()) continue;
          for (const SessionInfo& child : *children) {
            ASSERT_TRUE(sessions.Close({}, child.name).ok());
          }
        } else if (what == 3) {
          // Now and then, sessions without a turn expire.
          clock.Advance(absl::Minutes(4));
          static_cast<void>(sessions.Get({}, name));
          EXPECT_TRUE(sessions.List({}, std::nullopt, 0, 10).ok());
        } else {
          const auto sink = std::make_shared<CollectingSink>();
          const auto handle = harness->engine().Submit(Turn(name, RandomIds(5, i), 6), sink);
          if (!handle.ok()) {
            num_aborted += absl::IsAborted(handle.status()) ? 1 : 0;
            continue;
          }
          if (what == 4) (*handle)->Cancel();
          ASSERT_TRUE(sink->WaitFinished());
          EXPECT_EQ(sink->num_after_finish(), 0);
          num_turns += sink->status().ok() ? 1 : 0;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(num_turns, 0);
  const auto left = sessions.List({}, std::nullopt, 0, 100);
  for (const SessionInfo& info : left->sessions) EXPECT_FALSE(info.in_turn);
  harness->ExpectIdleIsEmpty();
}

}  // namespace
}  // namespace quire::engine
