#include "engine/sharing/prefix_record.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

PrefixParams Params() {
  return {.caller = {.tenant = "owner"}, .content = TokenIds{1, 2}, .request_id = "r"};
}

// What is tried again with the same request_id must be alike in every field.
TEST(RequestDigestTest, DiffersInEveryField) {
  const PrefixParams params = Params();
  {
    // A new member wants a case below.
    const auto& [caller, model, content, display_name, expiration, refresh_on_hit, allowed_tenants,
                 salt, request_id] = params;
    EXPECT_EQ(caller.tenant, "owner");
  }
  const std::vector<void (*)(PrefixParams&)> changes = {
      [](PrefixParams& other) { other.content = TokenIds{1}; },
      [](PrefixParams& other) {
        other.content = TokenIds{2, 1};
      },
      [](PrefixParams& other) { other.content = std::string("\1\0\0\0\2\0\0\0", 8); },
      [](PrefixParams& other) {
        other.content = ChatMessages{{"user", "x"}};
      },
      [](PrefixParams& other) {
        other.content = ChatMessages{{"userx", ""}};
      },
      [](PrefixParams& other) {
        other.content = ChatMessages{{"user", "x", true}};
      },
      [](PrefixParams& other) {
        other.content = ChatMessages{{"user", "x", true}, {"user", "x", false}};
      },
      [](PrefixParams& other) {
        other.content = ChatMessages{{"user", "x", true}, {"user", "x", true}};
      },
      [](PrefixParams& other) { other.display_name = "d"; },
      [](PrefixParams& other) { other.expiration = absl::Hours(1) + absl::Nanoseconds(1); },
      [](PrefixParams& other) { other.expiration = absl::UnixEpoch() + absl::Hours(1); },
      [](PrefixParams& other) { other.refresh_on_hit = true; },
      [](PrefixParams& other) { other.allowed_tenants = {"a"}; },
      [](PrefixParams& other) {
        other.allowed_tenants = {"a", "b"};
      },
      [](PrefixParams& other) { other.allowed_tenants = {"ab"}; },
      [](PrefixParams& other) {
        other.allowed_tenants = {"a", "s"};
      },
      [](PrefixParams& other) { other.allowed_tenants = {"a"}, other.salt = "s"; },
      [](PrefixParams& other) { other.salt = "s"; }};
  std::vector<std::string> digests = {RequestDigest(params)};
  for (size_t i = 0; i < changes.size(); ++i) {
    PrefixParams other = params;
    changes[i](other);
    const std::string digest = RequestDigest(other);
    for (size_t k = 0; k < digests.size(); ++k) EXPECT_NE(digest, digests[k]) << i << " " << k;
    EXPECT_FALSE(IsDigestOf(digest, params)) << i;
    EXPECT_TRUE(IsDigestOf(digest, other)) << i;
    digests.push_back(digest);
  }
}

TEST(PrefixRecordTest, AllowedTenantsAreCountedAtTheEdge) {
  EXPECT_TRUE(CheckAllowedTenants(std::vector<std::string>(256, "t")).ok());
  EXPECT_EQ(CheckAllowedTenants(std::vector<std::string>(257, "t")).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(RequestDigestTest, IsThatOfTheSameFieldsForEver) {
  EXPECT_EQ(absl::BytesToHexString(RequestDigest(Params())),
            "32a835682520eff2bfa9ff39ecb941f91fc73d112a15ade434381b8f940fdae816");
}

// The digest as servers made it that kept the content alone in it.
TEST(RequestDigestTest, ADigestOfAnEarlierServerIsOfTheContent) {
  const std::string old =
      absl::HexStringToBytes("e91828e21b5a9eef567554fee953d49df55df0c1f16b3038127e7c6af3d77860");
  PrefixParams other = Params();
  EXPECT_TRUE(IsDigestOf(old, other));
  other.salt = "s";
  EXPECT_TRUE(IsDigestOf(old, other)) << "what it does not have is not compared";
  other.content = TokenIds{1};
  EXPECT_FALSE(IsDigestOf(old, other));
}

}  // namespace
}  // namespace quire::engine
