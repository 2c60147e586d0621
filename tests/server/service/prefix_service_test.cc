// Tests PrefixService, with the prefixes of a fake.

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"

#include "tests/server/memory_server.h"
#include "tests/server/temp_file.h"

namespace quire::server {
namespace {

using quire::testing::CallOptions;
using quire::testing::HasDetails;
using quire::testing::MemoryClient;
using quire::testing::MemoryServer;
using quire::testing::Outcome;
using quire::testing::WriteTempFile;

// The token of each caller is "token-of-the-caller-" and the name.
constexpr char kCallers[] =
    "token:d0753d2034e8e3c32c7b5cf98bed1fe3b57e66e1109aee5381b603f83f6f4717 "
    "name=alice tenant=red\n"
    "token:c71855449ba93b48333347ab9b2822ba505344c81b9207cd3335609be6100f31 "
    "name=albert tenant=red\n"
    "token:0e1d32209ba2064c37c7cc3341832220369cf2a2870c97e6b448be868cafae9c "
    "name=bob tenant=blue\n"
    "token:3ec0dae2247751c54e51ea616e13db970460382da30511e64e454ff2649ce4c7 "
    "name=carol tenant=green\n"
    "token:e8456162b2c2109bfc3c832956d6d5b84d484a68718b377f271670e3d058171a "
    "name=olga tenant=ops roles=operator\n";

CallOptions As(const std::string& name) {
  return {.metadata = {{"authorization", "Bearer token-of-the-caller-" + name}}};
}
const CallOptions kAlice = As("alice");
const CallOptions kAlbert = As("albert");
const CallOptions kBob = As("bob");
const CallOptions kCarol = As("carol");
const CallOptions kOlga = As("olga");

v1::CreatePrefixRequest Text(const std::string& text) {
  v1::CreatePrefixRequest request;
  request.set_text(text);
  return request;
}
v1::GetPrefixRequest Named(const std::string& name) {
  v1::GetPrefixRequest request;
  request.set_name(name);
  return request;
}
v1::DeletePrefixRequest Without(const std::string& name) {
  v1::DeletePrefixRequest request;
  request.set_name(name);
  return request;
}

class PrefixServiceTest : public ::testing::Test {
 protected:
  std::string Create(const v1::CreatePrefixRequest& request, const CallOptions& options) {
    const auto reply = client_.CreatePrefix(request, options);
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    return reply.response.name();
  }
  // Returns the reason in the ErrorInfo of an error.
  static std::string ReasonOf(const Outcome& outcome) {
    google::rpc::ErrorInfo info;
    return HasDetails(outcome, info) ? info.reason() : "";
  }
  static std::string FieldOf(const Outcome& outcome) {
    google::rpc::BadRequest details;
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument) << outcome.status;
    return HasDetails(outcome, details) ? details.field_violations(0).field() : "";
  }

  MemoryServer server_{
      {}, {.auth_token_file = WriteTempFile("prefix_callers", kCallers), .access_log = "off"}};
  MemoryClient client_{server_};
};

TEST_F(PrefixServiceTest, CreatesAndGets) {
  v1::CreatePrefixRequest request = Text("twenty bytes of text");
  request.set_display_name("a name");
  request.mutable_ttl()->set_seconds(600);
  const auto created = client_.CreatePrefix(request, kAlice);
  ASSERT_TRUE(created.status.ok()) << created.status;
  EXPECT_EQ(created.response.state(), v1::Prefix::STATE_READY);
  EXPECT_EQ(created.response.tenant(), "red");
  EXPECT_EQ(created.response.num_tokens(), 20u);
  EXPECT_EQ(created.response.num_blocks(), 2u);
  EXPECT_EQ(created.response.ttl().seconds(), 600);
  EXPECT_EQ(created.response.expire_time().seconds(),
            created.response.create_time().seconds() + 600);
  EXPECT_EQ(created.response.hits(), 3u);
  const auto got = client_.GetPrefix(Named(created.response.name()), kAlbert);
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.response.SerializeAsString(), created.response.SerializeAsString());
  EXPECT_EQ(server_.engine.prefixes().last_params().caller.tenant, "red");
  EXPECT_FALSE(server_.engine.prefixes().last_params().caller.is_operator);
  EXPECT_EQ(server_.counters.Get(static_cast<size_t>(Rpc::kCreatePrefix), 0), 1u);
  EXPECT_EQ(server_.counters.Get(static_cast<size_t>(Rpc::kGetPrefix), 0), 1u);
}

TEST_F(PrefixServiceTest, UnknownAndForbiddenNamesLookTheSame) {
  v1::CreatePrefixRequest request = Text("shared with blue");
  request.add_allowed_tenants("blue");
  const std::string name = Create(request, kAlice);
  const auto allowed = client_.GetPrefix(Named(name), kBob);
  ASSERT_TRUE(allowed.status.ok()) << allowed.status;
  EXPECT_FALSE(allowed.response.has_hits());
  EXPECT_FALSE(allowed.response.has_charged_blocks());

  const auto forbidden = client_.GetPrefix(Named(name), kCarol);
  ASSERT_TRUE(client_.DeletePrefix(Without(name), kAlice).status.ok());
  const auto unknown = client_.GetPrefix(Named(name), kCarol);
  EXPECT_EQ(forbidden.status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(forbidden.status, unknown.status);
  EXPECT_EQ(forbidden.details.SerializeAsString(), unknown.details.SerializeAsString());
  EXPECT_EQ(ReasonOf(unknown), "PREFIX_NOT_FOUND");
}

TEST_F(PrefixServiceTest, OnlyTheOwnerAndOperatorsChange) {
  v1::CreatePrefixRequest request = Text("everybody's");
  request.add_allowed_tenants("*");
  const std::string name = Create(request, kAlice);
  v1::UpdatePrefixRequest update;
  update.mutable_prefix()->set_name(name);
  update.mutable_prefix()->set_display_name("new");
  update.mutable_update_mask()->add_paths("display_name");
  v1::WarmPrefixRequest warm;
  warm.set_name(name);
  for (const Outcome& outcome : std::initializer_list<Outcome>{
           client_.UpdatePrefix(update, kBob), client_.DeletePrefix(Without(name), kBob),
           client_.WarmPrefix(warm, kBob)}) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(ReasonOf(outcome), "PREFIX_PERMISSION_DENIED");
  }
  EXPECT_TRUE(client_.WarmPrefix(warm, kAlbert).status.ok());
  EXPECT_EQ(client_.UpdatePrefix(update, kOlga).response.display_name(), "new");
  EXPECT_TRUE(client_.DeletePrefix(Without(name), kOlga).status.ok());
}

TEST_F(PrefixServiceTest, EtagsGuardChanges) {
  const auto created = client_.CreatePrefix(Text("x"), kAlice).response;
  v1::UpdatePrefixRequest update;
  *update.mutable_prefix() = created;
  update.mutable_prefix()->add_allowed_tenants("blue");
  update.mutable_update_mask()->add_paths("*");
  const auto updated = client_.UpdatePrefix(update, kAlice);
  ASSERT_TRUE(updated.status.ok()) << updated.status;
  EXPECT_NE(updated.response.etag(), created.etag());
  EXPECT_EQ(updated.response.allowed_tenants_size(), 1);
  const auto late = client_.UpdatePrefix(update, kAlice);
  EXPECT_EQ(late.status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(late), "ETAG_ABORTED");
  v1::DeletePrefixRequest remove = Without(created.name());
  remove.set_etag(created.etag());
  EXPECT_EQ(client_.DeletePrefix(remove, kAlice).status.code(), absl::StatusCode::kAborted);
  remove.set_etag(updated.response.etag());
  EXPECT_TRUE(client_.DeletePrefix(remove, kAlice).status.ok());
}

TEST_F(PrefixServiceTest, AMissingPrefixMayBeDeleted) {
  v1::DeletePrefixRequest request = Without("prefixes/" + std::string(26, '7'));
  EXPECT_EQ(client_.DeletePrefix(request, kAlice).status.code(), absl::StatusCode::kNotFound);
  request.set_allow_missing(true);
  EXPECT_TRUE(client_.DeletePrefix(request, kAlice).status.ok());
  // Other errors stay errors.
  v1::CreatePrefixRequest everybodys = Text("everybody's");
  everybodys.add_allowed_tenants("*");
  request.set_name(Create(everybodys, kAlice));
  EXPECT_EQ(client_.DeletePrefix(request, kBob).status.code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(PrefixServiceTest, HostileNamesAreRefused) {
  for (const std::string& name :
       {std::string(), std::string(1 << 20, 'a'), std::string("prefixes/../../x"),
        "prefixes/" + std::string(26, '%')}) {
    v1::WarmPrefixRequest warm;
    warm.set_name(name);
    v1::UpdatePrefixRequest update;
    update.mutable_prefix()->set_name(name);
    update.mutable_update_mask()->add_paths("*");
    EXPECT_EQ(FieldOf(client_.GetPrefix(Named(name), kAlice)), "name");
    EXPECT_EQ(FieldOf(client_.DeletePrefix(Without(name), kAlice)), "name");
    EXPECT_EQ(FieldOf(client_.WarmPrefix(warm, kAlice)), "name");
    EXPECT_EQ(FieldOf(client_.UpdatePrefix(update, kAlice)), "prefix.name");
  }
  EXPECT_EQ(FieldOf(client_.CreatePrefix({}, kAlice)), "content");
}

TEST_F(PrefixServiceTest, AnEndedPrefixIsUnknown) {
  v1::CreatePrefixRequest request = Text("x");
  request.mutable_ttl()->set_seconds(60);
  const std::string name = Create(request, kAlice);
  server_.engine.prefixes().Advance(absl::Seconds(61));
  EXPECT_EQ(client_.GetPrefix(Named(name), kAlice).status.code(), absl::StatusCode::kNotFound);
}

TEST_F(PrefixServiceTest, WithoutWaitTheAnswerIsComputing) {
  server_.engine.prefixes().Hold();
  v1::CreatePrefixRequest request = Text("x");
  request.set_wait(false);
  const auto created = client_.CreatePrefix(request, kAlice);
  ASSERT_TRUE(created.status.ok()) << created.status;
  EXPECT_EQ(created.response.state(), v1::Prefix::STATE_COMPUTING);
  std::thread release([&] { server_.engine.prefixes().Release(); });
  v1::WarmPrefixRequest warm;
  warm.set_name(created.response.name());
  EXPECT_EQ(client_.WarmPrefix(warm, kAlice).response.state(), v1::Prefix::STATE_READY);
  release.join();
}

TEST_F(PrefixServiceTest, APrefixThatCannotBeComputedSaysWhy) {
  v1::CreatePrefixRequest request = Text(std::string(1001, 'x'));
  EXPECT_EQ(FieldOf(client_.CreatePrefix(request, kAlice)), "text");
  request.set_wait(false);
  const auto created = client_.CreatePrefix(request, kAlice);
  ASSERT_TRUE(created.status.ok()) << created.status;
  EXPECT_EQ(created.response.state(), v1::Prefix::STATE_FAILED);
  EXPECT_EQ(created.response.error(), "text: want at most 1000 tokens, got 1001");
}

TEST_F(PrefixServiceTest, ACallThatEndsBeforeItsAnswerLeavesNoPrefix) {
  server_.engine.prefixes().Hold();
  CallOptions options = kAlice;
  options.timeout = absl::Milliseconds(300);
  EXPECT_EQ(client_.CreatePrefix(Text("x"), options).status.code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(server_.engine.prefixes().WaitForPrefixes(0));

  v1::CreatePrefixRequest request = Text("y");
  request.set_request_id("again");
  EXPECT_EQ(client_.CreatePrefix(request, options).status.code(),
            absl::StatusCode::kDeadlineExceeded);
  std::thread release([&] {
    absl::SleepFor(absl::Milliseconds(50));
    server_.engine.prefixes().Release();
  });
  EXPECT_NE(Create(request, kAlice), "");
  release.join();
  EXPECT_EQ(server_.engine.prefixes().num_prefixes(), 1);
  request.set_text("z");
  EXPECT_EQ(FieldOf(client_.CreatePrefix(request, kAlice)), "request_id");
}

TEST_F(PrefixServiceTest, ACancelledWarmingLeavesThePrefix) {
  server_.engine.prefixes().Hold();
  v1::CreatePrefixRequest request = Text("x");
  request.set_wait(false);
  const std::string name = Create(request, kAlice);
  v1::WarmPrefixRequest warm;
  warm.set_name(name);
  CallOptions options = kAlice;
  options.timeout = absl::Milliseconds(100);
  EXPECT_EQ(client_.WarmPrefix(warm, options).status.code(), absl::StatusCode::kDeadlineExceeded);
  server_.engine.prefixes().Release();
  EXPECT_EQ(client_.GetPrefix(Named(name), kAlice).response.state(), v1::Prefix::STATE_READY);
}

TEST_F(PrefixServiceTest, AFullQuotaSaysItsNumbers) {
  for (int64_t i = 0; i < quire::testing::FakePrefixes::kMaxPrefixes; ++i) {
    ASSERT_TRUE(server_.engine.prefixes()
                    .Create({.caller = {.tenant = "red"}, .content = "x"}, [](const auto&) {})
                    .ok());
  }
  const auto refused = client_.CreatePrefix(Text("x"), kAlice);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  google::rpc::QuotaFailure details;
  ASSERT_TRUE(HasDetails(refused, details));
  EXPECT_EQ(details.violations(0).subject(), "prefixes");
  EXPECT_EQ(details.violations(0).description(), "want 1 more, got 2000 of at most 2000");
  EXPECT_NE(Create(Text("x"), kBob), "");
}

TEST_F(PrefixServiceTest, ListsInPages) {
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) {
    v1::CreatePrefixRequest request = Text("x");
    if (i % 2 == 0) request.add_allowed_tenants("blue");
    names.push_back(Create(request, kAlice));
  }
  names.push_back(Create(Text("y"), kBob));
  v1::ListPrefixesRequest request;
  request.set_page_size(2);
  std::vector<std::string> listed;
  do {
    const auto page = client_.ListPrefixes(request, kBob);
    ASSERT_TRUE(page.status.ok()) << page.status;
    EXPECT_EQ(page.response.prefixes_size(), 2);
    for (const v1::Prefix& prefix : page.response.prefixes()) listed.push_back(prefix.name());
    request.set_page_token(page.response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(listed, (std::vector<std::string>{names[0], names[2], names[4], names[5]}));

  request.set_tenant("red");
  EXPECT_EQ(client_.ListPrefixes(request, kBob).status.code(), absl::StatusCode::kPermissionDenied);
  request.set_page_size(1000);
  EXPECT_EQ(client_.ListPrefixes(request, kOlga).response.prefixes_size(), 5);
  EXPECT_EQ(client_.ListPrefixes(request, kAlbert).response.prefixes_size(), 5);
}

TEST_F(PrefixServiceTest, PageTokensHoldForCallerAndFilter) {
  for (int i = 0; i < 3; ++i) Create(Text("x"), kAlice);
  v1::ListPrefixesRequest request;
  request.set_page_size(1);
  request.set_page_token(client_.ListPrefixes(request, kAlice).response.next_page_token());
  request.set_page_size(2);
  EXPECT_EQ(client_.ListPrefixes(request, kAlice).response.prefixes_size(), 2);
  EXPECT_EQ(FieldOf(client_.ListPrefixes(request, kAlbert)), "page_token");
  request.set_tenant("red");
  EXPECT_EQ(FieldOf(client_.ListPrefixes(request, kAlice)), "page_token");
  request.clear_tenant();
  request.set_page_token(request.page_token() + "A");
  EXPECT_EQ(FieldOf(client_.ListPrefixes(request, kAlice)), "page_token");
  request.clear_page_token();
  request.set_page_size(1001);
  EXPECT_EQ(FieldOf(client_.ListPrefixes(request, kAlice)), "page_size");
}

TEST_F(PrefixServiceTest, PagesAreBoundedInBytes) {
  v1::CreatePrefixRequest request = Text("x");
  for (int i = 0; i < 256; ++i) request.add_allowed_tenants(std::string(256, 'a'));
  for (int i = 0; i < 40; ++i) Create(request, kAlice);
  v1::ListPrefixesRequest list;
  std::set<std::string> listed;
  int num_pages = 0;
  do {
    const auto page = client_.ListPrefixes(list, kAlice);
    ASSERT_TRUE(page.status.ok()) << page.status;
    EXPECT_LE(page.response.ByteSizeLong(), size_t{(1 << 20) + (1 << 10)});
    for (const v1::Prefix& prefix : page.response.prefixes()) listed.insert(prefix.name());
    list.set_page_token(page.response.next_page_token());
    ++num_pages;
  } while (!list.page_token().empty());
  EXPECT_EQ(listed.size(), 40u);
  EXPECT_EQ(num_pages, 3);
}

TEST_F(PrefixServiceTest, CallersMustBeKnown) {
  EXPECT_EQ(client_.CreatePrefix(Text("x")).status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(server_.engine.prefixes().num_prefixes(), 0);
}

TEST(PrefixServiceWithoutCallersTest, EverybodyIsOneTenant) {
  MemoryServer server;
  MemoryClient client(server);
  const auto created = client.CreatePrefix(Text("x"));
  ASSERT_TRUE(created.status.ok()) << created.status;
  EXPECT_EQ(created.response.tenant(), "");
  EXPECT_TRUE(server.engine.prefixes().last_params().caller.is_operator);
}

TEST(PrefixServiceWithoutCallersTest, CreatesAndDeletesStorm) {
  MemoryServer server;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      MemoryClient client(server);
      for (int k = 0; k < 30; ++k) {
        v1::CreatePrefixRequest request = Text(absl::StrCat(i, " ", k));
        request.set_wait(k % 2 == 0);
        const auto created = client.CreatePrefix(request);
        EXPECT_TRUE(created.status.ok()) << created.status;
        EXPECT_TRUE(client.DeletePrefix(Without(created.response.name())).status.ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server.engine.prefixes().num_prefixes(), 0);
}

}  // namespace
}  // namespace quire::server
