#include "text/tokenizer/regex.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::text {
namespace {

using ::testing::HasSubstr;

// Returns the text of the first match, or "-" if nothing matches.
std::string FirstMatch(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::Create(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  if (!regex.ok()) return "error";
  const auto match = regex->Find(text, 0);
  EXPECT_TRUE(match.ok()) << match.status();
  if (!match.ok() || !*match) return "-";
  return std::string(text.substr((*match)->begin, (*match)->end - (*match)->begin));
}

TEST(RegexTest, SpaceIsUnicodeWhiteSpace) {
  EXPECT_EQ(FirstMatch("\\s+", "a \t\u00a0\u0085\u3000b"), " \t\u00a0\u0085\u3000");
  // In PCRE2, \s by itself matches the Mongolian vowel separator, U+180E. Here it must not.
  EXPECT_EQ(FirstMatch("\\s", "\u180e"), "-");
  EXPECT_EQ(FirstMatch("\\S+", " \u180e "), "\u180e");
  EXPECT_EQ(FirstMatch("[^\\s\\p{L}]+", "ab \u180e! "), "\u180e!");
  EXPECT_EQ(FirstMatch("[\\S]+", " x\u00a0"), "x");
}

TEST(RegexTest, WordHasMarksAndConnectors) {
  EXPECT_EQ(FirstMatch("\\w+", "-a\u0301\u203f7\u00b2"), "a\u0301\u203f7");
  EXPECT_EQ(FirstMatch("\\W+", "ab-\u00b2c"), "-\u00b2");
}

TEST(RegexTest, AnchorsAreOfLines) {
  EXPECT_EQ(FirstMatch("b$", "ab\nc"), "b");
  EXPECT_EQ(FirstMatch("^c", "ab\nc"), "c");
}

TEST(RegexTest, ClassesInsideAClassAreItsUnion) {
  // This is a short form of BLOOM's pattern. The parentheses and the bar are members of the class.
  EXPECT_EQ(FirstMatch(" ?[^(\\s|[.,!?\u2026])]+", "(|) ab\u2026"), " ab");
  EXPECT_EQ(FirstMatch("[a[b[cd]]e]+", "xedcbay"), "edcba");
  EXPECT_EQ(FirstMatch("[[:digit:][xy]]+", "a1x2z"), "1x2");
}

TEST(RegexTest, QuoteMatchesItself) {
  const std::string text = "a.b*[\\é] \n{}()^$|+?-#";
  EXPECT_EQ(FirstMatch(Regex::Quote(text), "x" + text + "y"), text);
}

TEST(RegexTest, RefusesWhatMeansSomethingElse) {
  for (const auto& [pattern, words] :
       {std::pair("[a-z&&[^b]]", "&&"), std::pair("[a[^b]]", "character class"),
        std::pair("[a[-b]]", "character class"), std::pair("[a[b-]]", "character class"),
        std::pair("[a[b]", "terminating"), std::pair("\\h", "\\h"), std::pair("[\\W]", "\\W"),
        std::pair("(", "parenthes"), std::pair("[a", "terminating"), std::pair("\\C", "\\C"),
        std::pair("\\p{Nonsense}", "property")}) {
    const auto status = Regex::Create(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }
  EXPECT_TRUE(Regex::Create("[[:alpha:]]+").ok());
}

TEST(RegexTest, GivesUpOnExplosivePatterns) {
  const auto regex = Regex::Create("(?:a+)+$");
  ASSERT_TRUE(regex.ok());
  const absl::Status status = regex->Find(std::string(60, 'a') + "b", 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("spaces or line breaks"));
}

TEST(RegexTest, LongWordsNeedNoStack) {
  // The JIT's stack, of 32 KiB, does not hold a group that is repeated so often. The heap does.
  EXPECT_EQ(FirstMatch("(?:\\p{L}\\p{M}*)+", std::string(1 << 15, 'a')).size(), 1u << 15);
}

TEST(RegexTest, ALongWordTakesMemoryInProportionToItsText) {
  // A repeated group takes some hundred bytes of heap for each letter, and may take 16.
  const auto regex = Regex::Create("(?:\\p{L}\\p{M}*)+");
  ASSERT_TRUE(regex.ok());
  EXPECT_EQ(regex->Find(std::string(1 << 20, 'a'), 0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire::text
