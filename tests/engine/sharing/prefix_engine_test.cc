// Tests named prefixes on a whole engine with a fake model, whose answers are right only if it
// reads the right blocks. The test runs each step, and moves the clock.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::FakeClock;
using testing::GreedyParams;
using testing::RandomIds;

constexpr int32_t kBlockSize = 16;

class PrefixEngineTest : public ::testing::Test {
 protected:
  explicit PrefixEngineTest(testing::HarnessOptions options = {.num_blocks = 64}) {
    options.block_size = kBlockSize;
    options.clock = &clock_;
    engine_ = EngineHarness::Stepped(options, &model_);
    clock_.Advance(absl::Seconds(1));
  }

  struct Created {
    std::string name;
    int num_done = 0;
    absl::StatusOr<PrefixInfo> result = absl::UnknownError("not done");
  };

  static ContextCaller Caller(const std::string& tenant) { return {.tenant = tenant}; }
  static PrefixParams Params(const std::string& tenant, TokenIds ids) {
    return {.caller = Caller(tenant), .content = std::move(ids)};
  }
  std::shared_ptr<Created> Begin(PrefixParams params) {
    auto created = std::make_shared<Created>();
    const auto name = prefixes().Create(std::move(params), [created](auto result) {
      ++created->num_done;
      created->result = std::move(result);
    });
    EXPECT_TRUE(name.ok()) << name.status();
    if (name.ok()) created->name = *name;
    return created;
  }
  std::string Create(PrefixParams params) {
    const auto created = Begin(std::move(params));
    RunUntilIdle();
    EXPECT_EQ(created->num_done, 1);
    EXPECT_TRUE(created->result.ok()) << created->result.status();
    if (created->result.ok()) {
      EXPECT_EQ(created->result->state, PrefixState::kReady) << created->result->error;
    }
    return created->name;
  }
  absl::StatusOr<PrefixInfo> Get(const std::string& name, const std::string& tenant = "owner") {
    return prefixes().Get(Caller(tenant), name);
  }
  NamedPrefixes& prefixes() { return engine_->prefixes(); }
  void RunUntilIdle() {
    for (bool any = true; any;) {
      any = engine_->RunFrontend();
      any = engine_->Step() || any;
    }
  }
  GenerateParams Request(const std::string& tenant, const std::string& name, TokenIds ids,
                         int32_t max_tokens = 4) {
    GenerateParams params = GreedyParams(std::move(ids), max_tokens);
    params.prefix_name = name;
    params.sched.tenant = tenant;
    return params;
  }
  // Submits a request. After an error of Submit, the sink has this status.
  std::shared_ptr<CollectingSink> Submit(GenerateParams params) {
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
    const auto sink = Submit(std::move(params));
    RunUntilIdle();
    EXPECT_TRUE(sink->finished());
    return sink;
  }
  Usage UsageOf(GenerateParams params) {
    const auto sink = Run(std::move(params));
    EXPECT_TRUE(sink->status().ok()) << sink->status();
    return sink->summary().usage;
  }
  static TokenIds Joined(TokenIds ids, const TokenIds& more) {
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  }
  static absl::StatusCode Code(const CollectingSink& sink) { return sink.status().code(); }

  FakeClock clock_;
  testing::FakeModel* model_ = nullptr;
  std::unique_ptr<SteppedEngine> engine_;
  std::vector<std::shared_ptr<SubmittedRequest>> handles_;
};

TEST_F(PrefixEngineTest, IsReadyWhenItsBlocksArePinned) {
  const auto created = Begin(Params("owner", RandomIds(40, 1)));
  EXPECT_TRUE(created->name.starts_with("prefixes/"));
  EXPECT_EQ(Get(created->name)->state, PrefixState::kComputing);
  EXPECT_EQ(created->num_done, 0);
  RunUntilIdle();
  EXPECT_EQ(created->num_done, 1);
  const PrefixInfo info = *Get(created->name);
  EXPECT_EQ(info.state, PrefixState::kReady);
  EXPECT_EQ(info.num_tokens, 40);
  EXPECT_EQ(info.num_blocks, 3);
  EXPECT_GT(info.kv_bytes, 0);
  EXPECT_EQ(info.content_sha256.size(), 32u);
  EXPECT_EQ(info.use->charged_blocks, 3);
  const Stats stats = engine_->stats();
  EXPECT_EQ(stats.blocks_pinned, 3);
  EXPECT_EQ(stats.blocks_held, 3);
  EXPECT_EQ(stats.generated_tokens, 0);
  EXPECT_EQ(stats.finished_by_reason, (std::array<int64_t, 4>{}));
  EXPECT_EQ(stats.prefixes, (std::array<int64_t, 4>{0, 1, 0, 0}));
}

TEST_F(PrefixEngineTest, TenantsShareItAndNothingAfterIt) {
  const TokenIds ids = RandomIds(40, 1), more = RandomIds(30, 2);
  PrefixParams params = Params("owner", ids);
  params.allowed_tenants = {"a", "b"};
  const std::string name = Create(params);
  const auto alone = Run(Request("x", "", Joined(ids, more)));
  const auto a = Run(Request("a", name, more));
  EXPECT_EQ(a->sample().token_ids, alone->sample().token_ids);
  EXPECT_EQ(a->summary().usage.prompt_tokens, 70);
  EXPECT_EQ(a->summary().usage.cached_tokens, 40);
  EXPECT_EQ(a->summary().usage.prefix_tokens, 40);
  const Usage b = UsageOf(Request("b", name, more));
  EXPECT_EQ(b.cached_tokens, 40) << "b does not see what a computed";
  const Usage again = UsageOf(Request("a", name, more));
  EXPECT_EQ(again.cached_tokens, 69);
  EXPECT_EQ(again.prefix_tokens, 40);
  EXPECT_EQ(UsageOf(Request("owner", "", Joined(ids, more))).cached_tokens, 40);
  GenerateParams salted = Request("a", name, more);
  salted.cache.salt = "s";
  EXPECT_EQ(UsageOf(salted).cached_tokens, 40);
  const PrefixInfo info = *Get(name);
  EXPECT_EQ(info.use->hits, 4u);
  EXPECT_EQ(info.use->saved_tokens, 160u);
  EXPECT_EQ(engine_->stats().prefix_hits, 4);
  EXPECT_EQ(engine_->stats().prefix_saved_tokens, 160);
  EXPECT_FALSE(Get(name, "a")->use.has_value()) << "counts are for the owner";
}

TEST_F(PrefixEngineTest, OnlyThoseWhoMayUseItSeeIt) {
  PrefixParams params = Params("owner", RandomIds(20, 1));
  params.allowed_tenants = {"a"};
  const std::string name = Create(params);
  const absl::Status unknown = prefixes().Get(Caller("x"), "prefixes/none").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  const absl::Status forbidden = Get(name, "x").status();
  EXPECT_EQ(forbidden.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Code(*Run(Request("x", name, {1}))), absl::StatusCode::kNotFound);
  EXPECT_EQ(Code(*Run(Request("a", name, {1}))), absl::StatusCode::kOk);
  EXPECT_EQ(prefixes().Delete(Caller("x"), name, "").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(prefixes().Delete(Caller("a"), name, "").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(prefixes().Get({.tenant = "ops", .is_operator = true}, name).ok());
  EXPECT_EQ(prefixes().List(Caller("x"), std::nullopt, 0, 10)->prefixes.size(), 0u);
  EXPECT_EQ(prefixes().List(Caller("a"), std::nullopt, 0, 10)->prefixes.size(), 1u);
  EXPECT_EQ(prefixes().List(Caller("a"), "a", 0, 10)->prefixes.size(), 0u);
  EXPECT_EQ(prefixes().List(Caller("a"), "owner", 0, 10).status().code(),
            absl::StatusCode::kPermissionDenied);
  // The list of tenants may change.
  const PrefixInfo info = *Get(name);
  PrefixUpdate update{.name = name, .etag = info.etag, .allowed_tenants = {{"*"}}};
  ASSERT_TRUE(prefixes().Update(Caller("owner"), update).ok());
  EXPECT_EQ(Code(*Run(Request("x", name, {1}))), absl::StatusCode::kOk);
  const absl::Status updated = prefixes().Update(Caller("owner"), update).status();
  EXPECT_EQ(updated.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(base::ToStd(updated.message()).substr(0, 6), "etag: ");
  // What has ended has the text of what may not be used.
  EXPECT_EQ(base::ToStd(forbidden.message()).substr(0, 8), "prefix: ");
  ASSERT_TRUE(prefixes().Delete(Caller("owner"), name, "").ok());
  EXPECT_EQ(Get(name, "owner").status(), forbidden);
}

TEST_F(PrefixEngineTest, OnlyTheOwnerMayReadItThroughAnAnswer) {
  PrefixParams params = Params("owner", RandomIds(20, 1));
  params.allowed_tenants = {"*"};
  const std::string name = Create(params);
  GenerateParams echo = Request("a", name, {1});
  echo.output.echo = true;
  EXPECT_EQ(Code(*Run(echo)), absl::StatusCode::kPermissionDenied);
  GenerateParams logprobs = Request("a", name, {1});
  logprobs.output.prompt_logprobs = 0;
  EXPECT_EQ(Code(*Run(logprobs)), absl::StatusCode::kPermissionDenied);
  echo.sched.tenant = logprobs.sched.tenant = "owner";
  EXPECT_EQ(Code(*Run(echo)), absl::StatusCode::kOk);
  EXPECT_EQ(Code(*Run(logprobs)), absl::StatusCode::kOk);
}

TEST_F(PrefixEngineTest, PagesAreInTheOrderOfCreation) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < 3; ++i) names.push_back(Create(Params("owner", RandomIds(20, i))));
  const auto first = *prefixes().List(Caller("owner"), std::nullopt, 0, 2);
  ASSERT_EQ(first.prefixes.size(), 2u);
  EXPECT_EQ(first.prefixes[0].name, names[0]);
  EXPECT_NE(first.next, 0u);
  const auto second = *prefixes().List(Caller("owner"), std::nullopt, first.next, 2);
  ASSERT_EQ(second.prefixes.size(), 1u);
  EXPECT_EQ(second.prefixes[0].name, names[2]);
  EXPECT_EQ(second.next, 0u);
}

TEST_F(PrefixEngineTest, WhatRunsOnADeletedPrefixGoesOn) {
  const TokenIds ids = RandomIds(40, 1);
  const std::string name = Create(Params("owner", ids));
  const auto alone = Run(Request("x", "", Joined(ids, {1, 2, 3}), 20));
  const auto sink = Submit(Request("owner", name, {1, 2, 3}, 20));
  engine_->RunFrontend();
  for (int i = 0; i < 3; ++i) engine_->Step();
  ASSERT_TRUE(prefixes().Delete(Caller("owner"), name, "").ok());
  EXPECT_EQ(Get(name).status().code(), absl::StatusCode::kNotFound);
  engine_->Step();
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);
  EXPECT_GE(engine_->stats().blocks_held, 3);
  RunUntilIdle();
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->sample().token_ids, alone->sample().token_ids);
  EXPECT_EQ(engine_->stats().blocks_held, 0);
  EXPECT_EQ(prefixes().Delete(Caller("owner"), name, "").code(), absl::StatusCode::kNotFound);
}

TEST_F(PrefixEngineTest, ARequestThatStartsAfterTheEndComputesEverything) {
  const TokenIds ids = RandomIds(40, 1);
  const std::string name = Create(Params("owner", ids));
  const auto alone = Run(Request("x", "", Joined(ids, {1, 2, 3})));
  const auto sink = Submit(Request("owner", name, {1, 2, 3}));
  engine_->RunFrontend();  // it knows the content now
  ASSERT_TRUE(prefixes().Delete(Caller("owner"), name, "").ok());
  RunUntilIdle();
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->sample().token_ids, alone->sample().token_ids);
  EXPECT_EQ(sink->summary().usage.prefix_tokens, 0);
  EXPECT_EQ(sink->summary().usage.prompt_tokens, 43);
}

TEST_F(PrefixEngineTest, ADeletedPrefixIsNotPinnedAnyMore) {
  const auto created = Begin(Params("owner", RandomIds(200, 1)));
  engine_->RunFrontend();
  engine_->Step();
  ASSERT_TRUE(prefixes().Delete(Caller("owner"), created->name, "").ok());
  RunUntilIdle();
  EXPECT_EQ(created->num_done, 1);
  EXPECT_EQ(created->result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine_->stats().blocks_held, 0);
  EXPECT_LT(engine_->stats().prompt_tokens_computed, 200) << "the rest was not computed in vain";
  // The ledger has nothing of it: all that may be pinned can be pinned.
  Create(Params("owner", RandomIds(32 * kBlockSize - 1, 2)));
}

TEST_F(PrefixEngineTest, EndsWhenItsTimeHasPassed) {
  PrefixParams params = Params("owner", RandomIds(40, 1));
  params.expiration = absl::Minutes(10);
  const std::string name = Create(params);
  clock_.Advance(absl::Minutes(9));
  RunUntilIdle();
  EXPECT_EQ(Run(Request("owner", name, {1}))->summary().usage.prefix_tokens, 40);
  EXPECT_EQ(engine_->stats().blocks_pinned, 3);
  const absl::Status forbidden = Get(name, "x").status();
  const auto num_listed = [&] {
    return prefixes().List(Caller("owner"), std::nullopt, 0, 10)->prefixes.size();
  };
  clock_.Advance(absl::Minutes(1) - absl::Nanoseconds(1));
  EXPECT_TRUE(Get(name).ok());
  EXPECT_EQ(num_listed(), 1u);
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(Get(name).status().code(), absl::StatusCode::kNotFound) << "before any timer";
  EXPECT_EQ(num_listed(), 0u);
  EXPECT_EQ(Get(name).status(), forbidden);
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);
  EXPECT_EQ(engine_->stats().blocks_held, 0);
}

TEST_F(PrefixEngineTest, ATtlIsMoreThanNone) {
  PrefixParams params = Params("owner", RandomIds(40, 1));
  for (const absl::Duration ttl : {absl::ZeroDuration(), -absl::Nanoseconds(1)}) {
    params.expiration = ttl;
    EXPECT_EQ(prefixes().Create(params, [](const auto&) {}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << ttl;
  }
  params.expiration = absl::Nanoseconds(1);
  EXPECT_NE(Begin(params)->name, "");
  clock_.Advance(absl::Nanoseconds(1));
  RunUntilIdle();
}

TEST_F(PrefixEngineTest, AHitMovesTheEnd) {
  PrefixParams params = Params("owner", RandomIds(40, 1));
  params.expiration = absl::Minutes(10);
  params.refresh_on_hit = true;
  const std::string name = Create(params);
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Minutes(9));
    EXPECT_EQ(UsageOf(Request("owner", name, {1})).prefix_tokens, 40) << i;
  }
  clock_.Advance(absl::Minutes(9));
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 3);
  clock_.Advance(absl::Minutes(1));
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);
}

TEST_F(PrefixEngineTest, AnUpdateMovesTheEnd) {
  const std::string name = Create(Params("owner", RandomIds(40, 1)));
  ASSERT_TRUE(
      prefixes().Update(Caller("owner"), {.name = name, .expiration = {{absl::Minutes(2)}}}).ok());
  clock_.Advance(absl::Minutes(2));
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);
}

TEST_F(PrefixEngineTest, OneRequestIdGivesOnePrefixToEachOwner) {
  PrefixParams params = Params("owner", RandomIds(40, 1));
  params.request_id = "id";
  const auto first = Begin(params);
  const auto second = Begin(params);  // while it is computed
  EXPECT_EQ(first->name, second->name);
  RunUntilIdle();
  EXPECT_EQ(first->num_done, 1);
  EXPECT_EQ(second->num_done, 1);
  EXPECT_EQ(Create(params), first->name);
  params.caller.tenant = "another";
  EXPECT_NE(Create(params), first->name);
  params.caller.tenant = "owner";
  PrefixParams other = params;
  other.content = RandomIds(41, 1);
  EXPECT_EQ(prefixes().Create(other, [](auto) {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  clock_.Advance(absl::Minutes(59));
  RunUntilIdle();
  EXPECT_EQ(Create(params), first->name);
  clock_.Advance(absl::Minutes(1));
  RunUntilIdle();
  EXPECT_NE(Create(params), first->name);
}

TEST_F(PrefixEngineTest, MoreThanTheShareIsRefused) {
  const auto large = Begin(Params("owner", RandomIds(32 * kBlockSize, 1)));
  RunUntilIdle();
  // 512 tokens are the whole context, so 32 blocks are the most that a prompt may have here.
  EXPECT_EQ(large->result->state, PrefixState::kFailed);
  Create(Params("owner", RandomIds(20 * kBlockSize, 2)));
  const auto more = Begin(Params("owner", RandomIds(13 * kBlockSize, 3)));
  RunUntilIdle();
  ASSERT_EQ(more->result->state, PrefixState::kFailed);
  EXPECT_EQ(more->result->error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(more->result->error.message().find("13 blocks wanted, 20 are pinned, and 32 may be"),
            std::string::npos)
      << more->result->error;
  Create(Params("owner", RandomIds(12 * kBlockSize, 4)));
  EXPECT_EQ(engine_->stats().blocks_pinned, 32);
}

TEST_F(PrefixEngineTest, ATenantOfSeveralLeavesPinnedBlocksToTheOthers) {
  const auto code = [&](const std::string& tenant, int32_t num_blocks) {
    PrefixParams params = Params(tenant, RandomIds(num_blocks * kBlockSize, num_blocks));
    params.caller.limits.has_others = true;
    const auto created = Begin(params);
    RunUntilIdle();
    return created->result->error.code();
  };
  EXPECT_EQ(code("a", 17), absl::StatusCode::kInvalidArgument) << "half of 32";
  EXPECT_EQ(code("a", 16), absl::StatusCode::kOk);
  EXPECT_EQ(code("a", 1), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("b", 9), absl::StatusCode::kResourceExhausted) << "half of what is left";
  EXPECT_EQ(code("b", 8), absl::StatusCode::kOk);
  Create(Params("alone", RandomIds(8 * kBlockSize, 5)));
  EXPECT_EQ(engine_->stats().blocks_pinned, 32);
}

class ManyPrefixesTest : public PrefixEngineTest {
 protected:
  ManyPrefixesTest() : PrefixEngineTest({.num_blocks = 64, .max_queue = 10000}) {}
  static PrefixParams Small(const std::string& tenant) {
    PrefixParams params = Params(tenant, {1});
    params.caller.limits.has_others = true;
    return params;
  }
  // Creates prefixes until one is refused. Returns how many there were.
  int64_t CreateAll(const std::string& tenant) {
    for (int64_t num = 0;; ++num) {
      const auto name = prefixes().Create(Small(tenant), [](auto) {});
      if (!name.ok()) {
        EXPECT_EQ(name.status().code(), absl::StatusCode::kResourceExhausted);
        EXPECT_TRUE(base::ToStd(name.status().message()).starts_with("prefix: ")) << name.status();
        return num;
      }
      if (num % 200 == 0) RunUntilIdle();  // the frontend takes 256
    }
  }
};

TEST_F(ManyPrefixesTest, NoTenantTakesAllPrefixes) {
  EXPECT_EQ(CreateAll("a"), kMaxPrefixes / 2);
  EXPECT_EQ(CreateAll("b"), kMaxPrefixes / 4);
  Begin(Small("c"));
}

// So the ids that are known are no more than the prefixes.
TEST_F(PrefixEngineTest, TheRequestIdOfADeletedPrefixIsForgotten) {
  PrefixParams params = Params("owner", RandomIds(40, 1));
  params.request_id = "id";
  const std::string name = Create(params);
  ASSERT_TRUE(prefixes().Delete(Caller("owner"), name, "").ok());
  params.content = RandomIds(41, 1);
  EXPECT_NE(Create(params), name);
}

TEST_F(PrefixEngineTest, AFailedPrefixIsKeptForAMinute) {
  const auto failed = Begin(Params("owner", RandomIds(512, 1)));
  RunUntilIdle();
  EXPECT_EQ(Get(failed->name)->state, PrefixState::kFailed);
  EXPECT_EQ(Get(failed->name)->error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Code(*Run(Request("owner", failed->name, {1}))), absl::StatusCode::kFailedPrecondition);
  clock_.Advance(absl::Minutes(1) - absl::Nanoseconds(1));
  RunUntilIdle();
  EXPECT_TRUE(Get(failed->name).ok());
  clock_.Advance(absl::Nanoseconds(1));
  RunUntilIdle();
  EXPECT_FALSE(Get(failed->name).ok());
  EXPECT_EQ(engine_->stats().prefixes[2], 0);
}

TEST_F(PrefixEngineTest, UnsoundKvIsNotPinned) {
  model_->void_rows = true;
  const auto created = Begin(Params("owner", RandomIds(40, 1)));
  RunUntilIdle();
  EXPECT_EQ(created->num_done, 1);
  ASSERT_TRUE(created->result.ok());
  EXPECT_EQ(created->result->state, PrefixState::kFailed);
  EXPECT_EQ(created->result->error.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(engine_->stats().blocks_pinned, 0);
  EXPECT_EQ(engine_->stats().blocks_cached, 0) << "and not listed either";
  model_->void_rows = false;
  Create(Params("owner", RandomIds(32 * kBlockSize - 1, 1)));
}

TEST_F(PrefixEngineTest, AFlushLeavesIt) {
  const std::string name = Create(Params("owner", RandomIds(40, 1)));
  Run(Request("owner", name, RandomIds(20, 5)));
  engine_->FlushPrefixCache([](auto) {});
  RunUntilIdle();
  EXPECT_EQ(engine_->stats().blocks_pinned, 3);
  EXPECT_EQ(engine_->stats().blocks_cached, 0);
  EXPECT_EQ(UsageOf(Request("owner", name, RandomIds(20, 5))).cached_tokens, 40);
}

TEST_F(PrefixEngineTest, TextGoesOnAfterText) {
  PrefixParams params{.caller = Caller("owner"), .content = std::string(35, 'p')};
  const std::string name = Create(params);
  GenerateParams request = Request("owner", name, {});
  request.prompt = std::string("question");
  const Usage usage = UsageOf(request);
  EXPECT_EQ(usage.prefix_tokens, Get(name)->num_tokens);
  EXPECT_EQ(usage.prompt_tokens, Get(name)->num_tokens + 8);
  request.prompt = ChatMessages{{.role = "user", .content = "q"}};
  EXPECT_EQ(Code(*Run(request)), absl::StatusCode::kInvalidArgument);
  request.prompt = TokenIds{1, 2};
  EXPECT_EQ(UsageOf(request).prompt_tokens, Get(name)->num_tokens + 2);
}

TEST_F(PrefixEngineTest, MessagesGoOnAfterMessages) {
  const ChatMessages system = {{.role = "system", .content = std::string(40, 's')}};
  const std::string name = Create({.caller = Caller("owner"), .content = system});
  // "<system>" and the content are common to all that may follow.
  EXPECT_EQ(Get(name)->num_tokens, 48);
  ChatMessages all = system;
  all.push_back({.role = "user", .content = "question"});
  GenerateParams whole = Request("x", "", {});
  whole.prompt = all;
  const auto alone = Run(whole);
  GenerateParams request = Request("owner", name, {});
  request.prompt = ChatMessages{all.back()};
  const auto sink = Run(request);
  EXPECT_EQ(sink->sample().token_ids, alone->sample().token_ids);
  EXPECT_EQ(sink->summary().usage.prompt_tokens, alone->summary().usage.prompt_tokens);
  EXPECT_EQ(sink->summary().usage.prefix_tokens, 48);
}

TEST_F(PrefixEngineTest, SamplesOfARequestRunOnIt) {
  const TokenIds ids = RandomIds(40, 1);
  const std::string name = Create(Params("owner", ids));
  GenerateParams params = Request("owner", name, {1, 2}, 20);
  params.sampling.temperature = 1.0f;
  params.sampling.seed = 3;
  params.sampling.n = 3;
  const auto sink = Run(params);
  GenerateParams alone = Request("x", "", Joined(ids, {1, 2}), 20);
  alone.sampling = params.sampling;
  const auto want = Run(alone);
  for (int32_t k = 0; k < 3; ++k) {
    EXPECT_EQ(sink->sample(k).token_ids, want->sample(k).token_ids) << k;
  }
}

TEST_F(PrefixEngineTest, ARequestWaitsForAPrefixThatIsBeingComputed) {
  const auto created = Begin(Params("owner", RandomIds(40, 1)));
  engine_->RunFrontend();
  const auto sink = Submit(Request("owner", created->name, RandomIds(8, 2)));
  EXPECT_EQ(Get(created->name)->state, PrefixState::kComputing);
  RunUntilIdle();
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->summary().usage.prefix_tokens, 40);
  EXPECT_EQ(engine_->stats().followers, (std::array<int64_t, 3>{1, 0, 0}));
}

TEST_F(PrefixEngineTest, ATenantHoldsNoMoreBlocksThanItMay) {
  PrefixParams params = Params("owner", RandomIds(40, 1));
  params.caller.limits.max_blocks = 5;
  const std::string name = Create(params);
  EXPECT_EQ(engine_->tenant_usage("owner", {}).charged_blocks, 3);
  params.content = RandomIds(40, 2);
  const auto second = Begin(params);
  RunUntilIdle();
  EXPECT_EQ(second->result->error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(second->result->error.message().substr(0, 11) == "max_blocks:")
      << second->result->error;

  GenerateParams request = Request("owner", "", RandomIds(70, 3), 12);
  request.limits.max_blocks = 5;
  EXPECT_EQ(Code(*Run(request)), absl::StatusCode::kResourceExhausted) << "6 blocks of 16";
  request.stop.max_tokens = std::nullopt;
  request.stop.ignore_eos = false;
  EXPECT_TRUE(Run(request)->status().ok()) << "it gets what the limit leaves";
  request.stop.max_tokens = 10;
  EXPECT_TRUE(Run(request)->status().ok());
  const TenantUsages usages = engine_->tenant_usages();
  ASSERT_EQ(usages.num_lasting, 1u);
  EXPECT_EQ(usages.tenants[0].charged_blocks, 3);
  EXPECT_EQ(usages.others_charged_blocks, 0);
}

TEST_F(PrefixEngineTest, TheOwnerPaysForWhatItSharesWithNobody) {
  PrefixParams params = Params("owner", RandomIds(40, 1));
  params.allowed_tenants = {"*"};
  const auto created = Begin(params);
  engine_->RunFrontend();
  EXPECT_EQ(Get(created->name)->num_blocks, 3);
  EXPECT_EQ(Get(created->name)->use->charged_blocks, 0) << "not before it is pinned";
  RunUntilIdle();
  const auto charged = [&] { return Get(created->name)->use->charged_blocks; };
  EXPECT_EQ(charged(), 3);
  const auto own = Submit(Request("owner", created->name, RandomIds(8, 2), 50));
  engine_->RunFrontend();
  for (int i = 0; i < 4; ++i) engine_->Step();
  EXPECT_EQ(charged(), 3);
  // Each user shares two whole blocks, and has a copy of the third.
  double want = 3;
  for (const char* tenant : {"a", "b", "c"}) {
    Submit(Request(tenant, created->name, RandomIds(8, 3), 40));
    engine_->RunFrontend();
    for (int i = 0; i < 4; ++i) engine_->Step();
    want = 1 + 2.0 / (tenant[0] - 'a' + 2);
    EXPECT_NEAR(charged(), want, 1e-9) << tenant;
  }
  // A second prefix begins with the same block, for which its owner is charged once.
  TokenIds other = RandomIds(40, 1);
  other.resize(16);
  const std::string second = Create(Params("owner", other));
  EXPECT_EQ(Get(second)->use->charged_blocks, 1);
  EXPECT_EQ(charged(), 3) << "all requests have ended";
  EXPECT_EQ(engine_->tenant_usage("owner", {}).charged_blocks, 3);
}

TEST_F(PrefixEngineTest, NothingIsCreatedInADrain) {
  engine_->StartDrain();
  EXPECT_EQ(prefixes().Create(Params("owner", RandomIds(20, 1)), [](auto) {}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->stats().prefixes, (std::array<int64_t, 4>{}));
}

TEST_F(PrefixEngineTest, WarmAnswersWhenItIsThere) {
  const auto created = Begin(Params("owner", RandomIds(20, 1)));
  int num_done = 0;
  const auto done = [&](absl::StatusOr<PrefixInfo> info) {
    ++num_done;
    EXPECT_EQ(info->state, PrefixState::kReady);
  };
  prefixes().Warm(Caller("owner"), created->name, done);
  EXPECT_EQ(num_done, 0);
  RunUntilIdle();
  EXPECT_EQ(num_done, 1);
  prefixes().Warm(Caller("owner"), created->name, done);
  EXPECT_EQ(num_done, 2);
}

// A cache of 32 blocks, which a request may nearly fill.
class SmallCacheTest : public PrefixEngineTest {
 protected:
  SmallCacheTest() : PrefixEngineTest({.num_blocks = 32}) {}
};

TEST_F(SmallCacheTest, NoRequestIsAdmittedThatPinsWouldStarve) {
  const std::string name = Create(Params("owner", RandomIds(16 * kBlockSize, 1)));
  EXPECT_EQ(Code(*Run(Request("a", "", RandomIds(16 * kBlockSize, 2), 16))),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Code(*Run(Request("a", "", RandomIds(16 * kBlockSize - 16, 2), 16))),
            absl::StatusCode::kOk);
  GenerateParams any = Request("a", "", RandomIds(32, 3));
  any.stop.max_tokens = std::nullopt;
  const auto sink = Run(any);
  EXPECT_EQ(sink->summary().usage.completion_tokens, 16 * kBlockSize - 32);
  // The blocks of its own prefix serve a request.
  EXPECT_EQ(Code(*Run(Request("owner", name, RandomIds(200, 4), 40))), absl::StatusCode::kOk);
  ASSERT_TRUE(prefixes().Delete(Caller("owner"), name, "").ok());
  RunUntilIdle();
  EXPECT_EQ(Code(*Run(Request("a", "", RandomIds(16 * kBlockSize, 2), 16))), absl::StatusCode::kOk);
}

TEST_F(SmallCacheTest, NothingIsPinnedThatARunningRequestMayNeed) {
  const auto running = Submit(Request("a", "", RandomIds(16, 2), 16 * 19));
  engine_->RunFrontend();
  const auto created = Begin(Params("owner", RandomIds(13 * kBlockSize, 1)));
  engine_->RunFrontend();
  engine_->Step();
  EXPECT_EQ(created->num_done, 1);
  EXPECT_EQ(created->result->error.code(), absl::StatusCode::kResourceExhausted);
  Create(Params("owner", RandomIds(12 * kBlockSize, 1)));
  RunUntilIdle();
  EXPECT_TRUE(running->status().ok());
  Create(Params("owner", RandomIds(4 * kBlockSize, 3)));
}

}  // namespace
}  // namespace quire::engine
