#include "text/tokenizer/added_tokens.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace quire::text {
namespace {

using ::testing::ElementsAre;

AddedToken Plain(std::string content, int32_t id) {
  AddedToken token;
  token.content = std::move(content);
  token.id = id;
  return token;
}

// Returns the parts of `text`: plain text as "text", an added token as "id:text".
std::vector<std::string> Split(const AddedTokens& tokens, std::string_view text,
                               bool parse_special = true) {
  std::vector<AddedTokens::Part> parts;
  tokens.Split({.text = text}, parse_special, {}, parts);
  std::vector<std::string> out;
  for (const AddedTokens::Part& part : parts) {
    std::string words(text.substr(part.begin, part.end - part.begin));
    out.push_back(part.id < 0 ? words : absl::StrCat(part.id, ":", words));
  }
  return out;
}

TEST(AddedTokensTest, LeftmostThenLongest) {
  AddedTokens tokens;
  tokens.Add(Plain("ab", 1));
  tokens.Add(Plain("abcd", 2));
  tokens.Add(Plain("bcde", 3));
  tokens.Add(Plain("ab", 9));  // of two tokens with equal text, the first counts
  EXPECT_THAT(Split(tokens, "xabcabcdebcdeab"),
              ElementsAre("x", "1:ab", "c", "2:abcd", "e", "3:bcde", "1:ab"));
  EXPECT_THAT(Split(tokens, ""), ElementsAre());
  EXPECT_THAT(Split(AddedTokens(), "ab"), ElementsAre("ab"));
}

TEST(AddedTokensTest, SpecialTokensOnlyWhenAskedFor) {
  AddedTokens tokens;
  AddedToken end = Plain("<end>", 1);
  end.special = true;
  tokens.Add(end);
  tokens.Add(Plain("en", 2));
  EXPECT_THAT(Split(tokens, "en<end>"), ElementsAre("2:en", "1:<end>"));
  // The text of the special token is skipped as a whole, so the "en" in it is not found.
  EXPECT_THAT(Split(tokens, "en<end>en", /*parse_special=*/false),
              ElementsAre("2:en", "<end>", "2:en"));
}

TEST(AddedTokensTest, TakesWhiteSpaceAlong) {
  AddedTokens tokens;
  AddedToken left = Plain("<l>", 1);
  left.strip_left = true;
  AddedToken right = Plain("<r>", 2);
  right.strip_right = true;
  tokens.Add(left);
  tokens.Add(right);
  EXPECT_THAT(Split(tokens, "a \u3000<l> <r> \n<l>b"),
              ElementsAre("a", "1: \u3000<l>", " ", "2:<r> \n", "1:<l>", "b"));
}

TEST(AddedTokensTest, SingleWordsStandAlone) {
  AddedTokens tokens;
  AddedToken word = Plain("foo", 1);
  word.single_word = true;
  tokens.Add(word);
  EXPECT_THAT(Split(tokens, "foo foot éfoo ²foo foo_ (foo)"),
              ElementsAre("1:foo", " foot éfoo ²", "1:foo", " foo_ (", "1:foo", ")"));
}

}  // namespace
}  // namespace quire::text
