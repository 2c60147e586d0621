#include "base/json.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace quire::base {
namespace {

using ::testing::HasSubstr;

TEST(JsonTest, ParsesOneValue) {
  const auto value = ParseJson(R"({"a": [1, 2.5, "x", null]})", "test");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ((*value)["a"][2], "x");
}

TEST(JsonTest, NamesTheInputAndThePlace) {
  const auto value = ParseJson("{\"a\": }", "config.json");
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(value.status().message()),
              AllOf(HasSubstr("config.json"), HasSubstr("column 7")));
  EXPECT_FALSE(ParseJson("", "empty").ok());
  EXPECT_FALSE(ParseJson("1 2", "two").ok());
}

TEST(JsonTest, RefusesWhatNestsTooDeep) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(128), "deep").ok());
  const auto deeper = ParseJson(nested(129), "deep");
  EXPECT_THAT(std::string(deeper.status().message()), HasSubstr("deeper than 128"));
  EXPECT_FALSE(ParseJson(nested(1'000'000), "very deep").ok());
  // Brackets in a string are text and do not nest.
  EXPECT_TRUE(
      ParseJson('"' + std::string(500, '[') + "\\\"" + std::string(500, '{') + '"', "text").ok());
}

}  // namespace
}  // namespace quire::base
