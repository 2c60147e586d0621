#include "engine/sharing/session_registry.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_tokenizer.h"

namespace quire::engine {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class SessionRegistryTest : public ::testing::Test {
 protected:
  SessionInfo Created(const SessionParams& params = {}) {
    const auto created = registry_.Create(params);
    EXPECT_TRUE(created.ok()) << created.status();
    return created.ok() ? *created : SessionInfo();
  }
  SessionInfo Filled(const TokenIds& ids, const SessionParams& params = {}) {
    const auto appended =
        registry_.Append({.caller = params.caller, .name = Created(params).name, .content = ids});
    EXPECT_TRUE(appended.ok()) << appended.status();
    return appended->session;
  }
  StatusCode GetCode(const std::string& name, const ContextCaller& caller = {}) {
    return registry_.Get(caller, name).status().code();
  }
  TokenIds IdsOf(const std::string& name) {
    const auto turn = registry_.BeginTurn("", name, "", [] {});
    EXPECT_TRUE(turn.ok()) << turn.status();
    return turn.ok() ? (*turn)->before().ToIds() : TokenIds();
  }

  testing::FakeClock clock_;
  testing::FakeTokenizer tokenizer_;
  Frontend frontend_{
      tokenizer_, nullptr, {.vocab_size = 258, .max_model_len = 64, .max_prompt_bytes = 100}};
  SessionSeam seam_{frontend_, tokenizer_, 64};
  SessionRegistry registry_{seam_, clock_, {.model = "tiny"}};
};

TEST_F(SessionRegistryTest, NamesAreLongAndDiffer) {
  std::set<std::string> names;
  for (int i = 0; i < 100; ++i) names.insert(Created().name);
  EXPECT_EQ(names.size(), 100);
  for (const std::string& name : names) {
    EXPECT_THAT(name, MatchesRegex("sessions/[0-9a-hjkmnp-tv-z]{26}"));
  }
}

TEST_F(SessionRegistryTest, TheBytesOfAllSessionsAreBounded) {
  SessionRegistry registry(seam_, clock_, {.model = "tiny", .max_bytes = 40});
  const std::string name = registry.Create({})->name;
  ASSERT_TRUE(registry.Append({.name = name, .content = TokenIds(5, 1)}).ok());
  EXPECT_EQ(registry.num_bytes(), 20);
  ASSERT_TRUE(registry.Fork({.name = name}).ok());
  EXPECT_EQ(registry.num_bytes(), 40);
  for (const absl::Status& refused :
       {registry.Fork({.name = name}).status(),
        registry.Append({.name = name, .content = TokenIds(1, 1)}).status()}) {
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("have 40 of at most 40"));
  }
  {
    const auto turn = registry.BeginTurn("", name, "", [] {});
    EXPECT_EQ((*turn)->ReserveBytes(21).code(), StatusCode::kResourceExhausted);
    ASSERT_TRUE(registry.Close({}, name).ok());
    ASSERT_TRUE((*turn)->ReserveBytes(40).ok());
    EXPECT_EQ(registry.num_bytes(), 40);
  }
  EXPECT_EQ(registry.num_bytes(), 20);
}

TEST_F(SessionRegistryTest, ASessionIsMadeAgainFromItsContent) {
  const SessionInfo first = Filled({1, 2, 3});
  const auto known = registry_.GetWithContent({}, first.name);
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->etag, first.etag);
  EXPECT_EQ(known->content->ids, TokenIds({1, 2, 3}));
  EXPECT_FALSE(registry_.Get({}, first.name)->content.has_value());
  SessionRegistry other(seam_, clock_, {.model = "tiny"});
  const auto again = other.Create({.content = known->content});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->num_tokens, 3);
  EXPECT_EQ(other.num_bytes(), 12);
  EXPECT_EQ(other.GetWithContent({}, again->name)->content->ids, known->content->ids);
}

TEST_F(SessionRegistryTest, AnotherContentIsRefused) {
  const SessionCopy content = *registry_.GetWithContent({}, Filled({1, 2, 3}).name)->content;
  SessionCopy changed = content;
  changed.ids[2] = 4;
  SessionCopy short_hash = content;
  short_hash.content_sha256.resize(31);
  SessionRegistry other(seam_, clock_, {.model = "tiny", .model_digest = "another"});
  for (const absl::Status& refused :
       {registry_.Create({.content = changed}).status(),
        registry_.Create({.content = short_hash}).status(),
        registry_.Create({.content = SessionCopy{.ids = {1, 2, 3}}}).status(),
        other.Create({.content = content}).status()}) {
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("content.content_sha256: with the"));
  }
  EXPECT_EQ(registry_.num_bytes(), 12);
}

TEST_F(SessionRegistryTest, TheContentIsPartOfWhatCameWithARequestId) {
  const SessionCopy one = *registry_.GetWithContent({}, Filled({1, 2, 3}).name)->content;
  const SessionCopy two = *registry_.GetWithContent({}, Filled({1, 2, 4}).name)->content;
  const SessionInfo made = Created({.request_id = "r", .content = one});
  EXPECT_EQ(Created({.request_id = "r", .content = one}).name, made.name);
  SessionCopy with_messages = one;
  with_messages.messages.emplace();
  SessionCopy with_answer = one;
  with_answer.answer_len = 0;
  for (const std::optional<SessionCopy>& other :
       {std::optional(two), std::optional(with_messages), std::optional(with_answer),
        std::optional<SessionCopy>()}) {
    EXPECT_EQ(registry_.Create({.request_id = "r", .content = other}).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_F(SessionRegistryTest, TheContentIsForTheTenantAlone) {
  const ContextCaller owner{.tenant = "a"}, other{.tenant = "b"};
  const ContextCaller boss{.tenant = "b", .is_operator = true};
  const std::string name = Filled({1, 2, 3}, {.caller = owner}).name;
  EXPECT_EQ(registry_.GetWithContent(owner, name)->content->ids.size(), 3);
  EXPECT_EQ(registry_.GetWithContent(other, name).status(), registry_.Get(other, "none").status());
  EXPECT_EQ(GetCode(name, boss), StatusCode::kOk);
  EXPECT_EQ(registry_.GetWithContent(boss, name).status().code(), StatusCode::kPermissionDenied);
}

TEST_F(SessionRegistryTest, TheContentCountsAgainstTheBytesOfAll) {
  const SessionCopy ten = *registry_.GetWithContent({}, Filled(TokenIds(10, 1)).name)->content;
  SessionRegistry small(seam_, clock_, {.model = "tiny", .max_bytes = 79});
  ASSERT_TRUE(small.Create({.content = ten}).ok());
  EXPECT_EQ(small.Create({.content = ten}).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(small.num_bytes(), 40);
}

TEST_F(SessionRegistryTest, TheContentHasNothingOfATurnThatRuns) {
  const SessionInfo session = Filled({1, 2, 3});
  const auto turn = registry_.BeginTurn("", session.name, "", [] {});
  ASSERT_TRUE(turn.ok());
  EXPECT_EQ(registry_.GetWithContent({}, session.name)->content->ids.size(), 3);
}

// A prefix of "a" that all may use.
TEST_F(SessionRegistryTest, BehindAPrefixOnlyWhatTheTenantMayReadIsGiven) {
  const auto prefix = std::make_shared<PrefixContent>();
  prefix->tenant = "a";
  prefix->ids = {7, 8};
  prefix->given = TokenIds{7, 8};
  SessionRegistry registry(seam_, clock_,
                           {.model = "tiny", .resolve_prefix = [&](const auto&, auto) {
                              return absl::StatusOr<std::shared_ptr<const PrefixContent>>(prefix);
                            }});
  const auto made = [&](const std::string& tenant) {
    const std::string name =
        registry.Create({.caller = {.tenant = tenant}, .prefix_name = "prefixes/p"})->name;
    EXPECT_TRUE(
        registry.Append({.caller = {.tenant = tenant}, .name = name, .content = TokenIds{9}}).ok());
    return name;
  };
  for (const std::string tenant : {"a", "b"}) {
    const auto known = registry.GetWithContent({.tenant = tenant}, made(tenant));
    ASSERT_TRUE(known.ok()) << known.status();
    EXPECT_EQ(known->content->ids, TokenIds{9}) << "not the prefix's";
    SessionParams params{
        .caller = {.tenant = tenant}, .prefix_name = "prefixes/p", .content = known->content};
    EXPECT_EQ(registry.Create(params)->num_tokens, 3);
    params.prefix_name.clear();
    EXPECT_EQ(registry.Create(params).status().code(), StatusCode::kFailedPrecondition);
  }
  const auto fork = registry.Fork({.caller = {.tenant = "a"}, .name = made("a"), .at_token = 1});
  EXPECT_EQ(registry.GetWithContent({.tenant = "a"}, fork->front().name).status().code(),
            StatusCode::kFailedPrecondition);

  prefix->given = ChatMessages{{"system", "s"}};
  const std::string mine = made("a"), others = made("b");
  EXPECT_TRUE(registry.GetWithContent({.tenant = "a"}, mine).ok());
  EXPECT_EQ(registry.GetWithContent({.tenant = "b"}, others).status().code(),
            StatusCode::kPermissionDenied);
}

TEST_F(SessionRegistryTest, NothingIsPinnedWithoutALedger) {
  EXPECT_EQ(registry_.Create({.pinned = true}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(registry_.Create({.prefix_name = "prefixes/x"}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(SessionRegistryTest, ParametersAreCheckedAtTheirEdges) {
  for (const absl::Duration ttl : {kMinSessionTtl, kMaxSessionTtl}) {
    EXPECT_EQ(Created({.ttl = ttl}).ttl, ttl);
  }
  const std::string display(128, 'd'), salt(256, 's'), id(36, 'i');
  Created({.display_name = display, .salt = salt, .request_id = id});
  const auto code = [&](const SessionParams& params) {
    return registry_.Create(params).status().code();
  };
  EXPECT_EQ(code({.ttl = kMinSessionTtl - absl::Nanoseconds(1)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.ttl = kMaxSessionTtl + absl::Nanoseconds(1)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(registry_.Create({.ttl = -absl::InfiniteDuration()}).status().message(),
            "ttl: want 10s..24h, got no valid duration");
  EXPECT_EQ(code({.display_name = display + "d"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.salt = salt + "s"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.request_id = id + "i"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.model = "other"}), StatusCode::kNotFound);
  EXPECT_EQ(code({.model = "tiny"}), StatusCode::kOk);
}

TEST_F(SessionRegistryTest, ATenantSeesItsOwnSessionsOnly) {
  const SessionInfo session = Created({.caller = {.tenant = "a"}});
  const ContextCaller other{.tenant = "b"}, boss{.tenant = "b", .is_operator = true};
  EXPECT_EQ(GetCode(session.name, {.tenant = "a"}), StatusCode::kOk);
  EXPECT_EQ(GetCode(session.name, other), StatusCode::kNotFound);
  EXPECT_EQ(registry_.Get(other, session.name).status(), registry_.Get(other, "x").status());
  EXPECT_EQ(registry_.Append({.caller = other, .name = session.name}).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(registry_.Fork({.caller = other, .name = session.name}).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(registry_.BeginTurn("b", session.name, "", [] {}).status().code(),
            StatusCode::kNotFound);
  EXPECT_TRUE(registry_.Close(other, session.name).ok());
  EXPECT_EQ(registry_.List(other, "a", 0, 10).status().code(), StatusCode::kPermissionDenied);
  EXPECT_TRUE(registry_.List(other, std::nullopt, 0, 10)->sessions.empty());

  EXPECT_EQ(GetCode(session.name, boss), StatusCode::kOk);
  EXPECT_EQ(registry_.List(boss, "a", 0, 10)->sessions.size(), 1);
  EXPECT_EQ(registry_.Fork({.caller = boss, .name = session.name}).status().code(),
            StatusCode::kNotFound);
  EXPECT_TRUE(registry_.Close(boss, session.name).ok());
  EXPECT_EQ(GetCode(session.name, {.tenant = "a"}), StatusCode::kNotFound);
  EXPECT_TRUE(registry_.Close({.tenant = "a"}, session.name).ok()) << "again";
}

TEST_F(SessionRegistryTest, PagesHaveEverySessionOnce) {
  std::vector<std::string> names;
  for (int i = 0; i < 7; ++i) {
    names.push_back(Created().name);
    Created({.caller = {.tenant = "other"}});
  }
  for (const int32_t size : {1, 2, 6, 7, 8}) {
    std::vector<std::string> listed;
    uint64_t after = 0;
    do {
      const auto page = registry_.List({}, std::nullopt, after, size);
      EXPECT_LE(std::ssize(page->sessions), size);
      for (const SessionInfo& info : page->sessions) listed.push_back(info.name);
      after = page->next;
    } while (after != 0);
    EXPECT_EQ(listed, names) << size;
  }
}

TEST_F(SessionRegistryTest, LimitsCountATenantAndAll) {
  for (int tenant = 0; tenant < 4; ++tenant) {
    const ContextCaller caller{.tenant = absl::StrCat(tenant)};
    for (int i = 0; i < kMaxSessionsPerTenant; ++i) Created({.caller = caller});
    const auto refused = registry_.Create({.caller = caller});
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("has 256 of at most 256"));
  }
  const auto refused = registry_.Create({.caller = {.tenant = "fifth"}});
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("have 1024 of at most 1024"));
  const std::string first = registry_.List({.tenant = "0"}, std::nullopt, 0, 1)->sessions[0].name;
  ASSERT_TRUE(registry_.Close({.tenant = "0"}, first).ok());
  Created({.caller = {.tenant = "fifth"}});
}

TEST_F(SessionRegistryTest, AForkIsWholeOrNotAtAll) {
  const std::string name = Created().name;
  for (int i = 1; i < kMaxSessionsPerTenant - 4; ++i) Created();
  EXPECT_EQ(registry_.Fork({.name = name, .count = 5}).status().code(),
            StatusCode::kResourceExhausted);
  registry_.RunTimers();
  EXPECT_EQ(registry_.Counts().num_open, kMaxSessionsPerTenant - 4);
  EXPECT_EQ(registry_.Fork({.name = name, .count = 4})->size(), 4);
}

TEST_F(SessionRegistryTest, ForksHaveTheFirstTokens) {
  const SessionInfo parent = Filled({1, 2, 3, 4});
  for (int64_t at = 0; at <= 4; ++at) {
    const auto children = registry_.Fork({.name = parent.name, .at_token = at, .count = 2});
    ASSERT_EQ(children->size(), 2);
    for (const SessionInfo& child : *children) {
      EXPECT_EQ(child.num_tokens, at);
      EXPECT_EQ(child.ttl, parent.ttl);
      const TokenIds all{1, 2, 3, 4};
      EXPECT_EQ(IdsOf(child.name), TokenIds(all.begin(), all.begin() + at));
    }
  }
}

TEST_F(SessionRegistryTest, ForkIsCheckedAtItsEdges) {
  const std::string name = Filled({1, 2}).name;
  const auto code = [&](const SessionFork& fork) { return registry_.Fork(fork).status().code(); };
  EXPECT_EQ(code({.name = name, .at_token = 3}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.name = name, .at_token = -1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.name = name, .count = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.name = name, .count = kMaxForkCount + 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(registry_.Fork({.name = name, .count = 4294967295}).status().message(),
            "count: want 1..64, got 4294967295");
  EXPECT_EQ(code({.name = name, .count = kMaxForkCount}), StatusCode::kOk);
  EXPECT_EQ(code({.name = name, .ttl = absl::Seconds(9)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.name = name, .request_id = std::string(37, 'i')}), StatusCode::kInvalidArgument);
  EXPECT_EQ(registry_.Fork({.name = name, .ttl = absl::Seconds(10)})->front().ttl,
            absl::Seconds(10));
}

TEST_F(SessionRegistryTest, OneTurnAtATime) {
  const std::string name = Filled({1, 2}).name;
  auto turn = registry_.BeginTurn("", name, "", [] {});
  ASSERT_TRUE(turn.ok());
  EXPECT_TRUE(registry_.Get({}, name)->in_turn);
  EXPECT_EQ(registry_.BeginTurn("", name, "", [] {}).status().code(), StatusCode::kAborted);
  EXPECT_EQ(registry_.Append({.name = name, .content = TokenIds{3}}).status().code(),
            StatusCode::kAborted);
  EXPECT_EQ(registry_.Fork({.name = name})->front().num_tokens, 2) << "from before the turn";

  SessionContent after = (*turn)->before();
  after.AppendGenerated({3, 4});
  EXPECT_EQ((*turn)->Commit(after, /*is_turn=*/true).num_tokens, 4);
  const SessionInfo info = *registry_.Get({}, name);
  EXPECT_FALSE(info.in_turn);
  EXPECT_EQ(info.num_tokens, 4);
  EXPECT_EQ(info.num_turns, 1);
  after.AppendGenerated({5});
  EXPECT_EQ((*turn)->Commit(after, /*is_turn=*/true).name, "") << "a turn commits once";
  EXPECT_EQ(registry_.Get({}, name)->num_tokens, 4);
}

TEST_F(SessionRegistryTest, ATurnThatIsNotCommittedChangesNothing) {
  const SessionInfo before = Filled({1, 2});
  registry_.BeginTurn("", before.name, "", [] {})->reset();
  const SessionInfo after = *registry_.Get({}, before.name);
  EXPECT_EQ(after.etag, before.etag);
  EXPECT_EQ(after.num_tokens, 2);
  EXPECT_EQ(after.num_turns, 0);
  EXPECT_FALSE(after.in_turn);
}

TEST_F(SessionRegistryTest, CloseCancelsTheTurnWhoseCommitIsThenNothing) {
  const std::string name = Created().name;
  int num_cancels = 0;
  auto turn = registry_.BeginTurn("", name, "", [&] { ++num_cancels; });
  ASSERT_TRUE(registry_.Close({}, name).ok());
  EXPECT_EQ(num_cancels, 1);
  EXPECT_EQ((*turn)->Commit({}, /*is_turn=*/true).name, "");
  EXPECT_EQ(GetCode(name), StatusCode::kNotFound);

  const std::string other = Created().name;
  registry_.BeginTurn("", other, "", [&] { ++num_cancels; })->reset();
  ASSERT_TRUE(registry_.Close({}, other).ok());
  EXPECT_EQ(num_cancels, 1) << "the turn had ended";
}

TEST_F(SessionRegistryTest, EtagsChangeWithTheTokens) {
  const SessionInfo created = Created();
  const auto append = [&](const std::string& etag) {
    return registry_.Append({.name = created.name, .content = TokenIds{1}, .etag = etag});
  };
  const auto appended = append(created.etag);
  ASSERT_TRUE(appended.ok());
  EXPECT_NE(appended->session.etag, created.etag);
  EXPECT_EQ(append(created.etag).status().code(), StatusCode::kAborted);
  EXPECT_EQ(append("?").status().code(), StatusCode::kAborted);
  EXPECT_EQ(registry_.Get({}, created.name)->num_tokens, 1);
  EXPECT_TRUE(append(appended->session.etag).ok());
}

TEST_F(SessionRegistryTest, ASessionEndsAfterItsTtl) {
  const std::string name = Created({.ttl = absl::Seconds(10)}).name;
  const std::string longer = Created({.ttl = absl::Seconds(30)}).name;
  clock_.Advance(absl::Seconds(10) - absl::Nanoseconds(1));
  EXPECT_EQ(GetCode(name), StatusCode::kOk) << "a look does not prolong it";
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(GetCode(name), StatusCode::kNotFound);
  registry_.RunTimers();
  EXPECT_EQ(registry_.Counts().num_open, 1);
  EXPECT_EQ(GetCode(longer), StatusCode::kOk);
}

TEST_F(SessionRegistryTest, TheEndOfOneSessionEndsNoOther) {
  const std::string name = Created({.ttl = absl::Seconds(10)}).name;
  const std::string next = Created({.ttl = absl::Seconds(10) + absl::Nanoseconds(1)}).name;
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(GetCode(name), StatusCode::kNotFound);
  EXPECT_EQ(GetCode(next), StatusCode::kOk);
}

TEST_F(SessionRegistryTest, TheTtlRestsInATurnAndStartsAnewAtItsEnd) {
  const std::string name = Created({.ttl = absl::Seconds(10)}).name;
  auto turn = registry_.BeginTurn("", name, "", [] {});
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(GetCode(name), StatusCode::kOk);
  turn->reset();
  const absl::Duration left = registry_.Get({}, name)->expire_time - clock_.Date();
  EXPECT_LE(left, absl::Seconds(10));
  EXPECT_GT(left, absl::Seconds(9));
  clock_.Advance(absl::Seconds(10) - absl::Nanoseconds(1));
  EXPECT_EQ(GetCode(name), StatusCode::kOk);
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(GetCode(name), StatusCode::kNotFound);
}

TEST_F(SessionRegistryTest, ALookDoesNotMoveTheEnd) {
  const SessionInfo created = Created();
  const auto expect_same = [&](const char* when) {
    const SessionInfo info = *registry_.Get({}, created.name);
    EXPECT_EQ(info.etag, created.etag) << when;
    EXPECT_EQ(info.expire_time, created.expire_time) << when;
    EXPECT_EQ(info.create_time, created.create_time) << when;
  };
  expect_same("at once");
  clock_.Advance(absl::Minutes(1));
  expect_same("a minute later");
  clock_.StepDate(absl::Hours(5));
  expect_same("after somebody set the wall clock");
  const auto turn = registry_.BeginTurn("", created.name, "", [] {});
  const absl::Time in_turn = registry_.Get({}, created.name)->expire_time;
  clock_.Advance(absl::Minutes(1));
  clock_.StepDate(absl::Minutes(1));
  EXPECT_EQ(registry_.Get({}, created.name)->expire_time, in_turn);
  EXPECT_GT(in_turn, created.expire_time + absl::Hours(4)) << "it counts from the turn's begin";
}

TEST_F(SessionRegistryTest, ATenantOfSeveralLeavesRoomToTheOthers) {
  const TenantLimits limits{.has_others = true};
  const auto fill = [&](const std::string& tenant) {
    int num = 0;
    while (registry_.Create({.caller = {.tenant = tenant, .limits = limits}}).ok()) ++num;
    return num;
  };
  EXPECT_EQ(fill("a"), 256);
  EXPECT_EQ(fill("b"), 256);
  EXPECT_EQ(fill("c"), 256);
  EXPECT_EQ(fill("d"), 128) << "as many as are then free";
  const absl::Status refused =
      registry_.Create({.caller = {.tenant = "d", .limits = limits}}).status();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the tenant has 128 and may take 0 now; all tenants together have 896 of"));
  EXPECT_EQ(fill("e"), 64);
}

TEST_F(SessionRegistryTest, ATenantLeavesBytesToTheOthers) {
  SessionRegistry registry(seam_, clock_, {.model = "tiny", .max_bytes = 400});
  const ContextCaller a{.tenant = "a", .limits = {.has_others = true}};
  ContextCaller b = a;
  b.tenant = "b";
  const std::string of_a = registry.Create({.caller = a})->name;
  const auto append = [&](const ContextCaller& caller, const std::string& name, int num_tokens) {
    return registry.Append({.caller = caller, .name = name, .content = TokenIds(num_tokens, 1)})
        .status()
        .code();
  };
  EXPECT_EQ(append(a, of_a, 51), StatusCode::kResourceExhausted) << "204 of 400 bytes";
  EXPECT_EQ(append(a, of_a, 50), StatusCode::kOk);
  EXPECT_EQ(registry.Fork({.caller = a, .name = of_a}).status().code(),
            StatusCode::kResourceExhausted);
  const std::string of_b = registry.Create({.caller = b})->name;
  EXPECT_EQ(append(b, of_b, 26), StatusCode::kResourceExhausted);
  EXPECT_EQ(append(b, of_b, 25), StatusCode::kOk);
  ASSERT_TRUE(registry.Close(a, of_a).ok());
  EXPECT_EQ(append(b, of_b, 25), StatusCode::kOk) << "what a had is free";
  EXPECT_EQ(registry.num_bytes(), 200);
}

// What is tried again with the same request_id must be alike in every field.
TEST_F(SessionRegistryTest, ARequestIdStandsForEveryField) {
  CacheLedger ledger({{.num_blocks = 10}}, 1.0);
  SessionRegistry registry(
      seam_, clock_,
      {.model = "tiny",
       .resolve_prefix = [](const ContextCaller&, std::string_view) { return nullptr; },
       .ledger = &ledger});
  const SessionParams params{.request_id = "r"};
  ASSERT_TRUE(registry.Create(params).ok());
  {
    // A new member wants a case below.
    const auto& [caller, model, prefix_name, display_name, pinned, ttl, salt, request_id, content] =
        params;
    EXPECT_TRUE(caller.tenant.empty());
  }
  const std::vector<void (*)(SessionParams&)> changes = {
      [](SessionParams& other) { other.model = "tiny"; },
      [](SessionParams& other) { other.prefix_name = "prefixes/p"; },
      [](SessionParams& other) { other.display_name = "d"; },
      [](SessionParams& other) { other.pinned = true; },
      [](SessionParams& other) { other.ttl += absl::Nanoseconds(1); },
      [](SessionParams& other) { other.salt = "s"; },
      [](SessionParams& other) { other.content.emplace(); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    SessionParams other = params;
    changes[i](other);
    const absl::Status status = registry.Create(other).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << i;
    EXPECT_THAT(std::string(status.message()), HasSubstr("request_id")) << i;
    EXPECT_TRUE(registry.Create(params).ok()) << i;
  }
}

TEST_F(SessionRegistryTest, ARequestIdOfAForkStandsForEveryField) {
  CacheLedger ledger({{.num_blocks = 10}}, 1.0);
  SessionRegistry registry(seam_, clock_, {.model = "tiny", .ledger = &ledger});
  const SessionFork fork{.name = registry.Create({})->name, .request_id = "r"};
  ASSERT_TRUE(registry.Fork(fork).ok());
  {
    const auto& [caller, name, at_token, count, ttl, pinned, request_id] = fork;
    EXPECT_TRUE(caller.tenant.empty());
  }
  const std::vector<void (*)(SessionFork&)> changes = {
      [](SessionFork& other) { other.at_token = 0; }, [](SessionFork& other) { other.count = 2; },
      [](SessionFork& other) { other.ttl = absl::Minutes(10); },
      [](SessionFork& other) { other.pinned = false; },
      [](SessionFork& other) { other.pinned = true; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    SessionFork other = fork;
    changes[i](other);
    EXPECT_EQ(registry.Fork(other).status().code(), StatusCode::kInvalidArgument) << i;
    EXPECT_TRUE(registry.Fork(fork).ok()) << i;
  }
}

TEST_F(SessionRegistryTest, ARequestIdOfAnAppendStandsForItsWholeContent) {
  const std::string name = Created().name;
  const auto code = [&](const PromptContent& content) {
    return registry_.Append({.name = name, .content = content, .request_id = "r"}).status().code();
  };
  ASSERT_EQ(code(TokenIds{1, 2}), StatusCode::kOk);
  for (const PromptContent& other :
       {PromptContent(TokenIds{1}), PromptContent(TokenIds{2, 1}), PromptContent(TokenIds{1, 2, 3}),
        PromptContent(std::string("\1\2")), PromptContent(ChatMessages{{"user", "x"}})}) {
    EXPECT_EQ(code(other), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(code(TokenIds{1, 2}), StatusCode::kOk);
}

TEST_F(SessionRegistryTest, ARepeatedCreateGivesTheSameSession) {
  const SessionParams params{.display_name = "d", .request_id = "r"};
  const std::string name = Created(params).name;
  EXPECT_EQ(Created(params).name, name);
  EXPECT_EQ(registry_.Create({.display_name = "e", .request_id = "r"}).status().code(),
            StatusCode::kInvalidArgument);
  SessionParams of_another = params;
  of_another.caller.tenant = "other";
  const std::string another = Created(of_another).name;
  EXPECT_NE(another, name) << "ids of different tenants have nothing to do with each other";
  EXPECT_EQ(Created(of_another).name, another);
  EXPECT_EQ(Created(params).name, name);
  ASSERT_TRUE(registry_.Close({}, name).ok());
  EXPECT_NE(Created(params).name, name);
}

TEST_F(SessionRegistryTest, ARequestIdIsForgottenAfterAnHour) {
  const SessionParams params{.ttl = absl::Hours(2), .request_id = "r"};
  const std::string name = Created(params).name;
  clock_.Advance(absl::Hours(1) - absl::Nanoseconds(1));
  EXPECT_EQ(Created(params).name, name);
  clock_.Advance(absl::Nanoseconds(1));
  const std::string next = Created(params).name;
  EXPECT_NE(next, name);
  ASSERT_TRUE(registry_.Close({}, name).ok());
  EXPECT_EQ(Created(params).name, next) << "the end of the first forgets its own id alone";
}

TEST_F(SessionRegistryTest, AClosedSessionHasNoEndToCome) {
  const std::string name = Created({.ttl = absl::Seconds(10)}).name;
  const std::string longer = Created({.ttl = absl::Seconds(30)}).name;
  ASSERT_TRUE(registry_.Close({}, name).ok());
  EXPECT_EQ(registry_.RunTimers(), clock_.Now() + absl::Seconds(30));
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(registry_.RunTimers(), absl::InfiniteFuture());
  EXPECT_EQ(registry_.Counts().num_open, 0);
}

TEST_F(SessionRegistryTest, ARepeatedAppendAppendsOnce) {
  const SessionAppend append{.name = Created().name, .content = TokenIds{1, 2}, .request_id = "r"};
  const auto first = registry_.Append(append);
  ASSERT_TRUE(first.ok());
  SessionAppend next = append;
  next.request_id = "s";
  EXPECT_EQ(registry_.Append(next)->session.num_tokens, 4);
  EXPECT_EQ(registry_.Append(append)->session.etag, first->session.etag);
  EXPECT_EQ(registry_.Get({}, append.name)->num_tokens, 4);
  next.content = TokenIds{1};
  EXPECT_EQ(registry_.Append(next).status().code(), StatusCode::kInvalidArgument);
  next.content = std::string("\1");
  EXPECT_EQ(registry_.Append(next).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SessionRegistryTest, ARepeatedForkGivesTheSameChildren) {
  const SessionFork fork{.name = Filled({1, 2}).name, .count = 2, .request_id = "r"};
  const auto first = registry_.Fork(fork);
  const auto second = registry_.Fork(fork);
  ASSERT_EQ(second->size(), 2);
  EXPECT_EQ(first->at(0).name, second->at(0).name);
  EXPECT_EQ(first->at(1).name, second->at(1).name);
  EXPECT_EQ(registry_.Fork({.name = fork.name, .count = 3, .request_id = "r"}).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(registry_.Close({}, first->at(1).name).ok());
  EXPECT_EQ(registry_.Fork(fork).status().code(), StatusCode::kNotFound);
}

TEST_F(SessionRegistryTest, ASessionRemembersItsLastForksOnly) {
  const std::string name = Created().name;
  const auto child = [&](size_t id) {
    const SessionInfo made =
        registry_.Fork({.name = name, .request_id = absl::StrCat(id)})->front();
    return made.name;
  };
  std::vector<std::string> children;
  for (size_t i = 0; i < SessionRegistry::kMostReplays; ++i) children.push_back(child(i));
  EXPECT_EQ(child(0), children[0]);
  child(SessionRegistry::kMostReplays);
  EXPECT_EQ(child(1), children[1]);
  EXPECT_NE(child(0), children[0]);
}

}  // namespace
}  // namespace quire::engine
