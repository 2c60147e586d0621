#include "server/service/prefix_conversion.h"

#include <limits>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "server/service/page_tokens.h"
#include "server/service/proto_conversion.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const PrefixTtlLimits kLimits = {.max_ttl = absl::Hours(2),
                                 .now = absl::FromUnixSeconds(1'700'000'000)};
const std::string kName = "prefixes/" + std::string(26, 'a');

v1::CreatePrefixRequest TextPrefix() {
  v1::CreatePrefixRequest request;
  request.set_text("hello");
  return request;
}

v1::UpdatePrefixRequest UpdateOf(std::initializer_list<const char*> paths) {
  v1::UpdatePrefixRequest request;
  request.mutable_prefix()->set_name(kName);
  for (const char* path : paths) request.mutable_update_mask()->add_paths(path);
  return request;
}

template <typename Request>
std::string ErrorOf(const Request& request) {
  const auto result = FromProto(request, kLimits);
  if (result.ok()) return "";
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

TEST(PrefixConversionTest, WhatIsAbsentHasItsDefault) {
  const auto params = FromProto(TextPrefix(), kLimits);
  ASSERT_TRUE(params.ok()) << params.status();
  EXPECT_EQ(std::get<std::string>(params->content), "hello");
  EXPECT_EQ(params->model, "");
  EXPECT_EQ(std::get<absl::Duration>(params->expiration), absl::Hours(1));
  EXPECT_FALSE(params->refresh_on_hit);
  EXPECT_TRUE(params->allowed_tenants.empty());
  EXPECT_EQ(params->request_id, "");
  const auto shorter = FromProto(TextPrefix(), {.max_ttl = absl::Minutes(5), .now = kLimits.now});
  EXPECT_EQ(std::get<absl::Duration>(shorter->expiration), absl::Minutes(5));
}

TEST(PrefixConversionTest, TakesEveryField) {
  v1::CreatePrefixRequest request;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(model: "m" token_ids { ids: [3, 5] } display_name: "d" ttl { seconds: 90 nanos: 5 }
         refresh_on_hit: true allowed_tenants: ["a", "*"] salt: "s" request_id: "r")",
      &request));
  const auto params = FromProto(request, kLimits);
  ASSERT_TRUE(params.ok()) << params.status();
  EXPECT_EQ(params->model, "m");
  EXPECT_THAT(std::get<engine::TokenIds>(params->content), ElementsAre(3, 5));
  EXPECT_EQ(params->display_name, "d");
  EXPECT_EQ(std::get<absl::Duration>(params->expiration), absl::Seconds(90) + absl::Nanoseconds(5));
  EXPECT_TRUE(params->refresh_on_hit);
  EXPECT_THAT(params->allowed_tenants, ElementsAre("a", "*"));
  EXPECT_EQ(params->salt, "s");
  EXPECT_EQ(params->request_id, "r");
  request.mutable_chat()->add_messages()->set_role("system");
  request.mutable_expire_time()->set_seconds(1'700'000'100);
  request.set_refresh_on_hit(false);
  const auto chat = FromProto(request, kLimits);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(std::get<engine::ChatMessages>(chat->content)[0].role, "system");
  EXPECT_EQ(std::get<absl::Time>(chat->expiration), absl::FromUnixSeconds(1'700'000'100));
}

TEST(PrefixConversionTest, ContentIsRequired) {
  EXPECT_EQ(ErrorOf(v1::CreatePrefixRequest()), "content: want one of text, token_ids, chat");
  v1::CreatePrefixRequest request;
  request.mutable_token_ids();
  EXPECT_THAT(ErrorOf(request), StartsWith("token_ids.ids: "));
  request.mutable_chat();
  EXPECT_THAT(ErrorOf(request), StartsWith("chat.messages: "));
}

TEST(PrefixConversionTest, LengthsHaveEdges) {
  v1::CreatePrefixRequest request = TextPrefix();
  const auto expect_edge = [&](auto set, size_t max, std::string_view field) {
    set(std::string(max, 'x'));
    EXPECT_EQ(ErrorOf(request), "");
    set(std::string(max + 1, 'x'));
    EXPECT_THAT(ErrorOf(request), StartsWith(absl::StrCat(base::ToAbsl(field), ": want ")));
    set(std::string(max, 'x'));
  };
  expect_edge([&](const std::string& v) { request.set_display_name(v); }, 128, "display_name");
  expect_edge([&](const std::string& v) { request.set_salt(v); }, 256, "salt");
  expect_edge([&](const std::string& v) { request.set_request_id(v); }, 36, "request_id");
  request.add_allowed_tenants("a");
  expect_edge([&](const std::string& v) { request.set_allowed_tenants(0, v); }, 256,
              "allowed_tenants[0]");
  request.set_allowed_tenants(0, "");
  EXPECT_THAT(ErrorOf(request), StartsWith("allowed_tenants[0]: want 1..256 bytes, got 0"));
  request.set_allowed_tenants(0, "a");
  request.set_request_id("");
  EXPECT_THAT(ErrorOf(request), StartsWith("request_id: want 1..36 bytes"));
  request.clear_request_id();
  while (request.allowed_tenants_size() < 256) request.add_allowed_tenants("b");
  EXPECT_EQ(ErrorOf(request), "");
  request.add_allowed_tenants("b");
  EXPECT_EQ(ErrorOf(request), "allowed_tenants: want at most 256 names, got 257");
}

TEST(PrefixConversionTest, AnEmptyTextIsNoPrefix) {
  v1::CreatePrefixRequest request = TextPrefix();
  request.set_text("");
  EXPECT_EQ(ErrorOf(request), "text: want at least one byte, got an empty text");
  request.set_text("a");
  EXPECT_EQ(ErrorOf(request), "");
}

TEST(PrefixConversionTest, TtlHasEdges) {
  v1::CreatePrefixRequest request = TextPrefix();
  google::protobuf::Duration& ttl = *request.mutable_ttl();
  const auto error = [&](int64_t seconds, int32_t nanos) {
    ttl.set_seconds(seconds);
    ttl.set_nanos(nanos);
    return ErrorOf(request);
  };
  EXPECT_EQ(error(60, 0), "");
  EXPECT_EQ(error(59, 999'999'999), "ttl: want 1m to 2h (--max_prefix_ttl), got 59.999999999s");
  EXPECT_EQ(error(7200, 0), "");
  EXPECT_NE(error(7200, 1), "");
  EXPECT_THAT(error(-61, -5), EndsWith(", got -1m1.000000005s"));
  EXPECT_THAT(error(0, -5), EndsWith(", got -5ns"));
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  for (const auto& [seconds, nanos] : std::initializer_list<std::pair<int64_t, int32_t>>{
           {61, -1},
           {-61, 1},
           {61, 1'000'000'000},
           {-61, -1'000'000'000},
           {61, std::numeric_limits<int32_t>::min()},
           {std::numeric_limits<int64_t>::max(), 999'999'999},
           {kLeast, 0},
           {kLeast, std::numeric_limits<int32_t>::min()}}) {
    EXPECT_THAT(error(seconds, nanos), EndsWith(", got no valid duration")) << seconds << nanos;
  }
}

TEST(PrefixConversionTest, ExpireTimeHasEdges) {
  v1::CreatePrefixRequest request = TextPrefix();
  google::protobuf::Timestamp& end = *request.mutable_expire_time();
  const auto error = [&](int64_t seconds, int32_t nanos) {
    end.set_seconds(seconds);
    end.set_nanos(nanos);
    return ErrorOf(request);
  };
  const int64_t now = absl::ToUnixSeconds(kLimits.now);
  EXPECT_EQ(error(now + 60, 0), "");
  EXPECT_THAT(error(now + 59, 999'999'999),
              HasSubstr("expire_time: want a time 1m to 2h (--max_prefix_ttl) from now"));
  EXPECT_EQ(error(now + 7200, 0), "");
  EXPECT_NE(error(now + 7200, 1), "");
  EXPECT_THAT(error(now + 100, -1), EndsWith(", got no valid time"));
  EXPECT_NE(error(now + 100, 1'000'000'000), "");
  EXPECT_NE(error(std::numeric_limits<int64_t>::max(), 0), "");
  EXPECT_NE(error(std::numeric_limits<int64_t>::min(), 0), "");
  error(now + 100, 0);
  request.set_refresh_on_hit(true);
  EXPECT_THAT(ErrorOf(request), StartsWith("refresh_on_hit: want a ttl"));
}

TEST(PrefixConversionTest, AnUpdateTakesWhatItsMaskNames) {
  v1::UpdatePrefixRequest request = UpdateOf({"display_name"});
  request.mutable_prefix()->set_display_name("d");
  request.mutable_prefix()->set_etag("e");
  request.mutable_prefix()->add_allowed_tenants("a");
  auto update = FromProto(request, kLimits);
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_EQ(update->name, kName);
  EXPECT_EQ(update->etag, "e");
  EXPECT_EQ(update->display_name, "d");
  EXPECT_FALSE(update->expiration.has_value());
  EXPECT_FALSE(update->refresh_on_hit.has_value());
  EXPECT_FALSE(update->allowed_tenants.has_value());
  request.mutable_update_mask()->set_paths(0, "allowed_tenants");
  request.mutable_update_mask()->add_paths("ttl");
  request.mutable_update_mask()->add_paths("refresh_on_hit");
  request.mutable_prefix()->mutable_ttl()->set_seconds(70);
  update = FromProto(request, kLimits);
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_FALSE(update->display_name.has_value());
  EXPECT_THAT(*update->allowed_tenants, ElementsAre("a"));
  EXPECT_EQ(std::get<absl::Duration>(*update->expiration), absl::Seconds(70));
  EXPECT_EQ(update->refresh_on_hit, false);
}

TEST(PrefixConversionTest, AnUpdateOfAllTakesTtlOrEnd) {
  v1::UpdatePrefixRequest request = UpdateOf({"*"});
  EXPECT_THAT(ErrorOf(request), StartsWith("prefix.expire_time: "));
  request.mutable_prefix()->mutable_expire_time()->set_seconds(1'700'000'100);
  auto update = FromProto(request, kLimits);
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_TRUE(std::holds_alternative<absl::Time>(*update->expiration));
  EXPECT_EQ(update->display_name, "");
  EXPECT_EQ(update->refresh_on_hit, false);
  EXPECT_TRUE(update->allowed_tenants->empty());
  request.mutable_prefix()->set_refresh_on_hit(true);
  EXPECT_THAT(ErrorOf(request), StartsWith("prefix.refresh_on_hit: want a ttl"));
  request.mutable_prefix()->mutable_ttl()->set_seconds(60);
  update = FromProto(request, kLimits);
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_TRUE(std::holds_alternative<absl::Duration>(*update->expiration));
}

TEST(PrefixConversionTest, AMaskNamesWhatMayChange) {
  EXPECT_EQ(ErrorOf(UpdateOf({})), "update_mask: want at least one path");
  for (const char* path : {"name", "etag", "state", "hits", "prefix.ttl", "", "**"}) {
    EXPECT_THAT(ErrorOf(UpdateOf({path})), StartsWith("update_mask: want paths of ")) << path;
  }
  EXPECT_THAT(ErrorOf(UpdateOf({"*", "display_name"})), HasSubstr("got \"*\""));
  EXPECT_THAT(ErrorOf(UpdateOf({"ttl", "expire_time"})), HasSubstr("got both"));
  EXPECT_THAT(ErrorOf(UpdateOf({"ttl"})), StartsWith("prefix.ttl: "));
}

TEST(PrefixConversionTest, NamesHaveOneForm) {
  const auto is_name = [](std::string_view name) { return CheckPrefixName("name", name).ok(); };
  EXPECT_TRUE(is_name(kName));
  EXPECT_TRUE(is_name("prefixes/abcdefghijklmnopqrstuvwxyz"));
  EXPECT_TRUE(is_name("prefixes/01234567890123456789012345"));
  for (const std::string& name :
       {std::string(), std::string("prefixes/"), kName + "a", kName.substr(0, kName.size() - 1),
        "prefixes/" + std::string(26, 'A'), "prefixes/" + std::string(26, '/'),
        std::string("prefixes/../../../../etc/passwd/aa"), "Prefixes/" + std::string(26, 'a'),
        "/" + kName.substr(1), "prefixes/" + std::string(25, 'a') + '\0',
        std::string(1 << 20, 'a')}) {
    EXPECT_FALSE(is_name(name)) << name.substr(0, 64);
  }
}

TEST(PrefixConversionTest, PageSizesHaveEdges) {
  v1::ListPrefixesRequest request;
  EXPECT_EQ(PageSizeOf(request).value(), 100);
  for (const uint32_t size : {1u, 1000u}) {
    request.set_page_size(size);
    EXPECT_EQ(PageSizeOf(request).value(), static_cast<int32_t>(size));
  }
  for (const uint32_t size : {0u, 1001u, ~0u}) {
    request.set_page_size(size);
    EXPECT_THAT(std::string(PageSizeOf(request).status().message()),
                StartsWith("page_size: want 1..1000, got"));
  }
}

TEST(PrefixConversionTest, ShowsUseToWhomTheEngineShowsIt) {
  engine::PrefixInfo info{.name = kName,
                          .state = engine::PrefixState::kReady,
                          .tenant = "t",
                          .num_tokens = 20,
                          .num_blocks = 2,
                          .kv_bytes = int64_t{1} << 40,
                          .content_sha256 = std::string(32, '\xff'),
                          .create_time = absl::FromUnixMillis(1500),
                          .update_time = absl::FromUnixMillis(-500),
                          .expire_time = absl::FromUnixMillis(61'500),
                          .ttl = absl::Milliseconds(60'250),
                          .allowed_tenants = {"a"},
                          .etag = "e"};
  v1::Prefix prefix = ToProto(info);
  EXPECT_EQ(prefix.state(), v1::Prefix::STATE_READY);
  EXPECT_EQ(prefix.kv_bytes(), uint64_t{1} << 40);
  EXPECT_EQ(prefix.create_time().seconds(), 1);
  EXPECT_EQ(prefix.create_time().nanos(), 500'000'000);
  EXPECT_EQ(prefix.update_time().seconds(), -1);
  EXPECT_EQ(prefix.update_time().nanos(), 500'000'000);
  EXPECT_EQ(prefix.ttl().seconds(), 60);
  EXPECT_EQ(prefix.ttl().nanos(), 250'000'000);
  EXPECT_FALSE(prefix.has_hits());
  EXPECT_FALSE(prefix.has_charged_blocks());
  info.use = {.hits = 0, .saved_tokens = 5, .charged_blocks = 0.5};
  info.ttl = absl::ZeroDuration();
  prefix = ToProto(info);
  EXPECT_TRUE(prefix.has_hits());
  EXPECT_EQ(prefix.saved_tokens(), 5u);
  EXPECT_EQ(prefix.charged_blocks(), 0.5);
  EXPECT_FALSE(prefix.has_last_hit_time());
  EXPECT_FALSE(prefix.has_ttl());
  info.state = engine::PrefixState::kFailed;
  info.error = absl::InvalidArgumentError("text: \xff");
  prefix = ToProto(info);
  EXPECT_EQ(prefix.state(), v1::Prefix::STATE_FAILED);
  EXPECT_EQ(prefix.error(), "text: \xEF\xBF\xBD");
  info.state = engine::PrefixState::kCold;
  EXPECT_EQ(ToProto(info).state(), v1::Prefix::STATE_COLD);
}

}  // namespace
}  // namespace quire::server
