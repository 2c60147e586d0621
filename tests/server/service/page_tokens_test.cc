#include "server/service/page_tokens.h"

#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace quire::server {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(1000);

absl::StatusCode CodeOf(const PageTokens& tokens, std::string_view query, std::string_view token,
                        absl::Time now) {
  return tokens.Read(query, token, now).status().code();
}

TEST(PageTokensTest, ReturnsTheCursor) {
  const PageTokens tokens;
  for (const uint64_t cursor : {uint64_t{1}, uint64_t{300}, ~uint64_t{0}}) {
    const auto read = tokens.Read("q", tokens.Make("q", cursor, kNow), kNow);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, cursor);
  }
}

TEST(PageTokensTest, HoldsForAnHour) {
  const PageTokens tokens;
  const std::string token = tokens.Make("q", 7, kNow);
  EXPECT_EQ(CodeOf(tokens, "q", token, kNow + absl::Hours(1)), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(tokens, "q", token, kNow + absl::Hours(1) + absl::Nanoseconds(1)),
            absl::StatusCode::kInvalidArgument);
}

TEST(PageTokensTest, HoldsForItsQueryAndServer) {
  const PageTokens tokens;
  const std::string token = tokens.Make("q", 7, kNow);
  EXPECT_EQ(CodeOf(tokens, "r", token, kNow), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(tokens, "", token, kNow), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(PageTokens(), "q", token, kNow), absl::StatusCode::kInvalidArgument);
}

TEST(PageTokensTest, RefusesEveryChange) {
  const PageTokens tokens;
  const std::string token = tokens.Make("q", 7, kNow);
  // The last character has bits that no byte uses, so it may be changed without effect.
  for (size_t i = 0; i + 1 < token.size(); ++i) {
    std::string changed = token;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    EXPECT_EQ(CodeOf(tokens, "q", changed, kNow), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_FALSE(tokens.Read("q", token.substr(0, i), kNow).ok()) << i;
  }
  EXPECT_FALSE(tokens.Read("q", token + "AAAA", kNow).ok());
  EXPECT_FALSE(tokens.Read("q", std::string(1 << 20, 'A'), kNow).ok());
  EXPECT_FALSE(tokens.Read("q", "not base64!", kNow).ok());
}

}  // namespace
}  // namespace quire::server
