// Tests which callers the server knows, and the rights that a caller gives to a request.

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/mutex.h"
#include "base/strings.h"
#include "server/identity/certificate_name.h"
#include "server/identity/file_watcher.h"
#include "server/identity/grant.h"
#include "server/identity/identities.h"
#include "server/identity/identity_store.h"
#include "tests/server/temp_file.h"

namespace quire::server {
namespace {

using quire::testing::WriteTempFile;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFirst[] = "first-token-0123456789";
constexpr char kSecond[] = "second-token-0123456789";
constexpr IdentityContext kTokensOnly{};
constexpr IdentityContext kCertificates{.certificates = true};

std::string Line(std::string_view token, std::string_view fields) {
  const TokenDigest digest = DigestOf(token);
  return absl::StrCat("token:",
                      absl::BytesToHexString(absl::string_view(
                          reinterpret_cast<const char*>(digest.data()), digest.size())),
                      " ", base::ToAbsl(fields), "\n");
}

std::shared_ptr<const Identities> Load(std::string_view text,
                                       const IdentityContext& context = kTokensOnly) {
  auto loaded = Identities::Load(WriteTempFile("identities", text), context);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

std::string LoadError(std::string_view text, const IdentityContext& context = kTokensOnly) {
  return std::string(
      Identities::Load(WriteTempFile("identities", text), context).status().message());
}

// Returns the caller with `token`, or null for an unknown token.
std::shared_ptr<const Principal> ByToken(const Identities& identities, std::string_view token) {
  const std::string header = absl::StrCat("Bearer ", base::ToAbsl(token));
  return identities.Authenticate(header, "").value_or(nullptr);
}

TEST(IdentitiesTest, MatchesWholeTokensOnly) {
  const auto identities = Load("# ours\n\nfirst-token-0123456789\n  second-token-0123456789  \r\n");
  EXPECT_EQ(identities->size(), 2u);
  const auto first = identities->Authenticate("Bearer first-token-0123456789", "");
  const auto second = identities->Authenticate("bearer second-token-0123456789", "");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE((*first)->name, (*second)->name);
  for (const char* wrong : {"", "Bearer ", "Bearer first-token-012345678", "first-token-0123456789",
                            "Basic first-token-0123456789", "Bearer first-token-01234567890",
                            "Bearer FIRST-token-0123456789", "Bearer # ours"}) {
    EXPECT_EQ(identities->Authenticate(wrong, "alice").status().code(),
              absl::StatusCode::kUnauthenticated)
        << wrong;
  }
  EXPECT_FALSE(identities->Authenticate(std::nullopt, "").ok());
}

TEST(IdentitiesTest, ABareTokenIsAUserAndATenantOfItsOwn) {
  const auto both = Load(absl::StrCat(kFirst, "\n", kSecond, "\n"));
  const auto principal = ByToken(*both, kSecond);
  ASSERT_NE(principal, nullptr);
  EXPECT_EQ(principal->tenant, principal->name);
  EXPECT_FALSE(principal->is_operator || principal->any_tenant || both->has_operator());
  EXPECT_EQ(principal->max_priority, 0);
  EXPECT_THAT(principal->name, Not(HasSubstr("second")));
  // The name does not depend on the number of the token's line. Otherwise a new token on the same
  // line could read prefixes that the old token has cached.
  EXPECT_EQ(ByToken(*Load(absl::StrCat(kSecond, "\n")), kSecond)->name, principal->name);
}

TEST(IdentitiesTest, FieldsSayWhoAndWhat) {
  const auto identities = Load(
      Line(kFirst,
           "name=alice tenant=search roles=operator,any-tenant max_priority=10 max_waiting=64 "
           "max_running=8 max_blocks=100 share=2 requests_per_minute=60 tokens_per_minute=100000") +
      Line(kSecond, "name=bob\ttenant=search"));
  const auto alice = ByToken(*identities, kFirst);
  const auto bob = ByToken(*identities, kSecond);
  ASSERT_TRUE(alice != nullptr && bob != nullptr);
  EXPECT_EQ(alice->name, "alice");
  EXPECT_TRUE(alice->is_operator && alice->any_tenant && identities->has_operator());
  EXPECT_FALSE(bob->is_operator || bob->any_tenant);
  for (const auto& principal : {alice, bob}) {  // the limits belong to the tenant
    EXPECT_EQ(principal->tenant, "search");
    EXPECT_EQ(principal->max_priority, 10);
    EXPECT_EQ(principal->limits.max_waiting, 64);
    EXPECT_EQ(principal->limits.max_running, 8);
    EXPECT_EQ(principal->limits.max_blocks, 100);
    EXPECT_EQ(principal->limits.share, 2);
    EXPECT_EQ(principal->limits.requests_per_minute, 60);
    EXPECT_EQ(principal->limits.tokens_per_minute, 100000);
    EXPECT_FALSE(principal->limits.leaves_room) << "max_waiting says it";
    EXPECT_FALSE(principal->limits.leaves_places) << "max_running says it";
    EXPECT_TRUE(principal->limits.has_others) << "alice asks for any tenant";
  }
}

TEST(IdentitiesTest, OneTenantOfSeveralLeavesSomethingToTheOthers) {
  const auto alone = ByToken(*Load(absl::StrCat(kFirst, "\n")), kFirst)->limits;
  EXPECT_FALSE(alone.leaves_room);
  EXPECT_FALSE(alone.leaves_places);
  EXPECT_FALSE(alone.has_others);
  const auto one = ByToken(*Load(absl::StrCat(kFirst, "\n", kSecond, "\n")), kFirst)->limits;
  EXPECT_TRUE(one.leaves_room);
  EXPECT_TRUE(one.leaves_places);
  EXPECT_TRUE(one.has_others);
  // A caller with any-tenant is a gateway that sends requests for many tenants.
  EXPECT_TRUE(ByToken(*Load(Line(kFirst, "roles=any-tenant")), kFirst)->limits.leaves_places);
}

TEST(IdentitiesTest, CertificatesAreNamed) {
  const auto identities =
      Load(absl::StrCat("cert:alice roles=operator\ncert:\"Bob B.\" name=bob\n", kFirst, "\n"),
           kCertificates);
  EXPECT_TRUE((*identities->Authenticate(std::nullopt, "DNS:alice"))->is_operator);
  EXPECT_EQ((*identities->Authenticate(std::nullopt, "CN:Bob B."))->name, "bob");
  for (const char* stranger : {"", "DNS:Alice", "DNS:carol", "URI:alice"}) {
    EXPECT_FALSE(identities->Authenticate(std::nullopt, stranger).ok()) << stranger;
  }
  EXPECT_EQ((*identities->Authenticate("Bearer first-token-0123456789", "alice"))->name,
            ByToken(*identities, kFirst)->name);
  EXPECT_FALSE(identities->Authenticate("Bearer wrong", "alice").ok());
  EXPECT_THAT(LoadError("cert:alice\n"), HasSubstr(":1: cert: want --tls_client_ca"));
}

TEST(IdentitiesTest, ALineMayNameTheKindOfAName) {
  const auto identities = Load(
      "cert:URI:spiffe://a/b name=workload\ncert:spiffe://a/b name=any\ncert:email:eve name=eve\n",
      kCertificates);
  const auto name = [&](std::string_view certificate) {
    const auto caller = identities->Authenticate(std::nullopt, certificate);
    return caller.ok() ? (*caller)->name : "nobody";
  };
  EXPECT_EQ(name("URI:spiffe://a/b"), "workload");
  EXPECT_EQ(name("CN:spiffe://a/b"), "any");
  EXPECT_EQ(name("DNS:spiffe://a/b"), "nobody");
  EXPECT_EQ(name("email:eve"), "eve");
  EXPECT_EQ(name("DNS:eve"), "nobody");
}

TEST(CertificateNameTest, IsPlainIfItReadsAsItsKind) {
  const auto plain = [](std::string_view typed) {
    return std::string(PlainName(typed).value_or("none"));
  };
  const std::string_view texts[] = {"example.com", "*.example.com", "a_b", "urn:a",
                                    "x+1.-:y",     "10.0.0.1",      "a@b", "mailto:a@b",
                                    "::1",         "1:a",           ":a",  "fe80::1:2",
                                    "10.0.0",      "a b",           "+:a", "u:a"};
  const NameKind kinds[] = {NameKind::kDns, NameKind::kDns, NameKind::kDns,   NameKind::kUri,
                            NameKind::kUri, NameKind::kIp,  NameKind::kEmail, NameKind::kUri,
                            NameKind::kIp,  NameKind::kDns, NameKind::kDns,   NameKind::kIp,
                            NameKind::kDns, NameKind::kDns, NameKind::kDns,   NameKind::kUri};
  for (size_t i = 0; i < std::size(texts); ++i) {
    for (const NameKind kind : {NameKind::kDns, NameKind::kUri, NameKind::kEmail, NameKind::kIp}) {
      EXPECT_EQ(plain(TypedName(kind, texts[i])), kind == kinds[i] ? texts[i] : "none")
          << TypedName(kind, texts[i]);
    }
    EXPECT_EQ(plain(TypedName(NameKind::kCommon, texts[i])), texts[i]);
  }
  // What reads as a typed name has no plain name, not even as a common name.
  for (const std::string_view typed : {"DNS:a", "URI:a", "email:a", "IP:a", "CN:a"}) {
    EXPECT_TRUE(IsTypedName(typed));
    for (const NameKind kind : {NameKind::kUri, NameKind::kCommon}) {
      EXPECT_EQ(plain(TypedName(kind, typed)), "none");
    }
  }
  EXPECT_FALSE(IsTypedName("uri:a"));
  EXPECT_EQ(plain("URI:uri:a"), "uri:a");
  EXPECT_EQ(plain("a"), "none");
  EXPECT_EQ(plain(""), "none");
  EXPECT_EQ(TypedName(NameKind::kDns, ""), "");
}

TEST(IdentitiesTest, WithoutAFileACertificateIsATenantAndNoneIsEverybody) {
  const auto by_name = Identities::WithoutFile(kCertificates);
  const auto alice = by_name->Authenticate("Bearer whatever", "DNS:alice");
  ASSERT_TRUE(alice.ok());
  EXPECT_EQ((*alice)->tenant, "alice");
  EXPECT_EQ((*by_name->Authenticate(std::nullopt, "URI:alice"))->tenant, "URI:alice");
  EXPECT_FALSE((*alice)->is_operator || by_name->has_operator());
  EXPECT_EQ((*alice)->max_priority, 0);
  const absl::Status nameless = by_name->Authenticate(std::nullopt, "").status();
  EXPECT_EQ(nameless.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(nameless.message()), HasSubstr("with a name"));

  const auto everybody = Identities::WithoutFile(kTokensOnly)->Authenticate(std::nullopt, "");
  ASSERT_TRUE(everybody.ok());
  EXPECT_TRUE((*everybody)->is_operator && (*everybody)->any_tenant);
  EXPECT_EQ(engine::MostRunning((*everybody)->limits, 64), 64);
}

TEST(IdentitiesTest, RefusesFilesThatProtectNothingOrContradictThemselves) {
  EXPECT_THAT(LoadError("# nothing\n"), EndsWith("holds no token"));
  EXPECT_THAT(LoadError("a-long-enough-token\nshort\n"), HasSubstr(":2: want a token of at least"));
  const std::string two_words = LoadError("two words are no token\n");
  EXPECT_THAT(two_words, HasSubstr(":1: want"));
  EXPECT_THAT(two_words, Not(HasSubstr("words")));
  EXPECT_THAT(LoadError("token:abc\n"), HasSubstr("64 hexadecimal digits, got 3"));
  EXPECT_THAT(LoadError(Line(kFirst, "tenants=x")), HasSubstr("unknown field"));
  EXPECT_THAT(LoadError(Line(kFirst, "x")), HasSubstr("want FIELD=VALUE"));
  EXPECT_THAT(LoadError(Line(kFirst, "roles=root")), HasSubstr("got \"root\""));
  EXPECT_THAT(LoadError(Line(kFirst, "") + Line(kFirst, "")), HasSubstr("stands twice"));
  EXPECT_THAT(LoadError("cert:alice\ncert:alice name=b\n", kCertificates),
              HasSubstr("name b: a line of it stands twice"));
  EXPECT_THAT(std::string(Identities::Load("/nonexistent", kTokensOnly).status().message()),
              HasSubstr("/nonexistent: cannot read"));
}

// The fields of a line that are numbers, each with the ends of its range.
struct NumberField {
  const char* name;
  int64_t least, most;
};
constexpr NumberField kNumberFields[] = {{"max_priority", -100, 100},
                                         {"max_waiting", 1, 1 << 20},
                                         {"max_running", 1, 1 << 16},
                                         {"max_blocks", 1, 1 << 30},
                                         {"share", 1, 100},
                                         {"requests_per_minute", 1, 1 << 20},
                                         {"tokens_per_minute", 1, 1 << 30}};

TEST(IdentitiesTest, NumbersAreCheckedAtTheirEdges) {
  for (const NumberField& field : kNumberFields) {
    const auto line = [&](int64_t value) {
      return Line(kFirst, absl::StrCat(field.name, "=", value));
    };
    EXPECT_EQ(Load(line(field.least))->size(), 1u);
    EXPECT_EQ(Load(line(field.most))->size(), 1u);
    for (const int64_t beyond : {field.least - 1, field.most + 1}) {
      EXPECT_THAT(LoadError(line(beyond)),
                  HasSubstr(absl::StrCat(field.name, ": want an integer ", field.least, "..",
                                         field.most, ", got \"", beyond, "\"")));
    }
    EXPECT_THAT(LoadError(Line(kFirst, absl::StrCat(field.name, "="))), HasSubstr(field.name));
  }
}

TEST(IdentitiesTest, TheLinesOfATenantAgreeOnEachNumber) {
  for (const NumberField& field : kNumberFields) {
    const auto two_lines = [&](int first, std::string_view second) {
      return Line(kFirst, absl::StrCat("tenant=t ", field.name, "=", first)) +
             Line(kSecond, absl::StrCat("tenant=t ", base::ToAbsl(second)));
    };
    EXPECT_EQ(Load(two_lines(3, ""))->size(), 2u);
    EXPECT_EQ(Load(two_lines(3, absl::StrCat(field.name, "=3")))->size(), 2u);
    EXPECT_THAT(LoadError(two_lines(3, absl::StrCat(field.name, "=4"))),
                HasSubstr("tenant t: want its limits once"))
        << field.name;
  }
}

TEST(IdentitiesTest, TheLinesOfANameAgreeOnTenantAndRoles) {
  const std::string alice = "name=a tenant=t roles=operator,any-tenant";
  EXPECT_EQ(Load(Line(kFirst, alice) + Line(kSecond, alice))->size(), 2u);
  for (const char* other : {"name=a tenant=u roles=operator,any-tenant",
                            "name=a tenant=t roles=any-tenant", "name=a tenant=t roles=operator"}) {
    EXPECT_THAT(LoadError(Line(kFirst, alice) + Line(kSecond, other)),
                HasSubstr("name a: want the same tenant and roles"))
        << other;
  }
}

TEST(IdentitiesTest, WordsAreCheckedAtTheirEdges) {
  EXPECT_EQ(Load(std::string(16, 'k') + "\n")->size(), 1u);
  EXPECT_THAT(LoadError(std::string(15, 'k') + "\n"), HasSubstr("a token of at least 16"));
  EXPECT_THAT(LoadError(std::string(16, 'k') + "\x7f\n"), HasSubstr("printable characters"));
  for (const std::string key : {"name", "tenant"}) {
    EXPECT_EQ(Load(Line(kFirst, key + "=" + std::string(256, 'n')))->size(), 1u);
    for (const std::string& value : {std::string(), std::string(257, 'n')}) {
      EXPECT_THAT(LoadError(Line(kFirst, key + "=" + value)),
                  HasSubstr(key + ": want 1..256 printable characters"));
    }
  }
  EXPECT_THAT(LoadError("token:" + std::string(63, 'a') + "\n"), HasSubstr("got 63"));
  EXPECT_THAT(LoadError("token:" + std::string(63, 'a') + "g\n"), HasSubstr("64 hexadecimal"));
  EXPECT_THAT(LoadError("cert:\n", kCertificates), HasSubstr("cert: want a name"));
  EXPECT_THAT(LoadError("cert:\"\"\n", kCertificates), HasSubstr("cert: want a name"));
  EXPECT_THAT(LoadError("cert:\"Bob B.\n", kCertificates), HasSubstr("closing quotation mark"));
}

TEST(GrantTest, TheTenantIsTheCallersAndTheRequestsAPartOfIt) {
  const Principal alice{.name = "alice", .tenant = "search", .limits = {.max_running = 3}};
  engine::GenerateParams params;
  params.sched.tenant = "mail";
  ASSERT_TRUE(Grant(alice, params).ok());
  EXPECT_EQ(params.owner, "alice");
  EXPECT_EQ(params.sched.tenant, "search");
  EXPECT_EQ(params.cache.part, "mail");
  EXPECT_EQ(params.limits.max_running, 3);

  const Principal gateway{.name = "gateway", .tenant = "own", .any_tenant = true};
  engine::GenerateParams named;
  named.sched.tenant = "mail";
  ASSERT_TRUE(Grant(gateway, named).ok());
  EXPECT_EQ(named.sched.tenant, "mail");
  EXPECT_EQ(named.cache.part, "");
  engine::GenerateParams unnamed;
  ASSERT_TRUE(Grant(gateway, unnamed).ok());
  EXPECT_EQ(unnamed.sched.tenant, "own");
}

TEST(GrantTest, APriorityIsAtMostTheCeiling) {
  const Principal caller{.max_priority = 3};
  for (const int32_t priority : {-100, 0, 3}) {
    engine::GenerateParams params;
    params.sched.priority = priority;
    EXPECT_TRUE(Grant(caller, params).ok()) << priority;
  }
  for (const int32_t priority : {4, kTopPriority}) {
    engine::GenerateParams params;
    params.sched.priority = priority;
    EXPECT_EQ(Grant(caller, params).code(), absl::StatusCode::kPermissionDenied) << priority;
  }
  engine::GenerateParams invalid;  // for the engine to refuse
  invalid.sched.priority = kTopPriority + 1;
  EXPECT_TRUE(Grant(caller, invalid).ok());
}

TEST(IdentityStoreTest, ABadFileChangesNothing) {
  const std::string path = WriteTempFile("store", absl::StrCat(kFirst, "\n"));
  const auto store = IdentityStore::Create(path, kTokensOnly);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto before = (*store)->Get();
  std::ofstream(path) << "short\n";
  (*store)->Reload();
  EXPECT_EQ((*store)->Get(), before);
  std::ofstream(path) << kSecond << "\n";
  (*store)->Reload();
  EXPECT_EQ(ByToken(*(*store)->Get(), kFirst), nullptr);
  EXPECT_NE(ByToken(*(*store)->Get(), kSecond), nullptr);
  EXPECT_NE(ByToken(*before, kFirst), nullptr) << "who holds the old ones keeps them";
}

// Counts the calls of Note, and waits for them.
class Calls {
 public:
  void Note() {
    base::MutexLock lock(mu_);
    ++num_;
    noted_.NotifyAll();
  }
  bool WaitFor(int num) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    base::MutexLock lock(mu_);
    while (num_ < num && absl::Now() < deadline) {
      noted_.WaitFor(mu_, std::chrono::milliseconds(100));
    }
    return num_ == num;
  }
  int num() {
    base::MutexLock lock(mu_);
    return num_;
  }

 private:
  base::Mutex mu_;
  base::CondVar noted_;
  int num_ = 0;
};

TEST(FileWatcherTest, SeesContentsReplacementsAndLinks) {
  const std::string target = WriteTempFile("target", "a");
  const std::string other = WriteTempFile("other", "b");
  const std::string link = absl::StrCat(target, ".link");
  std::filesystem::remove(link);
  std::filesystem::create_symlink(target, link);
  Calls calls;
  FileWatcher watcher(
      {link}, [&] { calls.Note(); }, absl::Milliseconds(5));
  std::ofstream(target) << "longer";
  EXPECT_TRUE(calls.WaitFor(1));
  // A mounted secret changes in this way: a new link is renamed to the name of the old link.
  std::filesystem::create_symlink(other, link + ".next");
  std::filesystem::rename(link + ".next", link);
  EXPECT_TRUE(calls.WaitFor(2));
  std::filesystem::remove(other);
  EXPECT_TRUE(calls.WaitFor(3));
  watcher.Trigger();
  EXPECT_TRUE(calls.WaitFor(4));
  absl::SleepFor(absl::Milliseconds(50));  // ten periods
  EXPECT_EQ(calls.num(), 4) << "nothing has changed";
  std::filesystem::remove(link);
}

TEST(FileWatcherTest, EndsAtOnceWhateverItsPeriod) {
  Calls calls;
  FileWatcher watcher(
      {"/nonexistent"}, [&] { calls.Note(); }, absl::Hours(24));
  // Each time its thread has gone to sleep meanwhile.
  absl::SleepFor(absl::Milliseconds(20));
  watcher.Trigger();
  EXPECT_TRUE(calls.WaitFor(1));
  absl::SleepFor(absl::Milliseconds(20));
  FileWatcher idle({}, [] { FAIL(); });
  idle.Trigger();
}

}  // namespace
}  // namespace quire::server
