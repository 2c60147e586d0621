#include "base/json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/utf8.h"

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

TEST(JsonTest, AMessageIsShortAndUtf8WhateverTheText) {
  std::string accents;
  for (int i = 0; i < 5000; ++i) accents += "é";
  for (const std::string& text :
       {std::string(100'000, 'a'), std::string("\xff"), accents, "a" + accents}) {
    const std::string message(ParseJson("{\"" + text, "f").status().message());
    EXPECT_THAT(message, HasSubstr("f: not valid JSON: "));
    EXPECT_THAT(message, HasSubstr("line 1, column "));
    EXPECT_LT(message.size(), 350u);
    EXPECT_TRUE(IsValidUtf8(message)) << message;
  }
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
