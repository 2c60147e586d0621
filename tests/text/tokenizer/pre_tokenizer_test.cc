#include "text/tokenizer/pre_tokenizer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::text {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Split(const PreTokenizer& pre_tokenizer, std::string_view text) {
  SplitText split;
  const absl::Status status = pre_tokenizer.Split({.text = text}, split);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<std::string> out;
  for (const TextPart& word : split.words) out.emplace_back(word.text);
  return out;
}

PreTokenizer Make(std::string_view pattern, SplitBehavior behavior, bool invert = false) {
  PreTokenizer pre_tokenizer;
  auto regex = Regex::Create(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  pre_tokenizer.AddSplit(*std::move(regex), behavior, invert);
  return pre_tokenizer;
}

TEST(PreTokenizerTest, Behaviors) {  // the example of Hugging Face's documentation
  const std::string text = "the-final--countdown";
  EXPECT_THAT(Split(Make("-", SplitBehavior::kRemoved), text),
              ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(Split(Make("-", SplitBehavior::kIsolated), text),
              ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(Split(Make("-", SplitBehavior::kMergedWithPrevious), text),
              ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(Split(Make("-", SplitBehavior::kMergedWithNext), text),
              ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(Split(Make("-", SplitBehavior::kContiguous), text),
              ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(Split(Make("[a-z]+", SplitBehavior::kRemoved, /*invert=*/true), text),
              ElementsAre("the", "final", "countdown"));
}

TEST(PreTokenizerTest, Gpt2Words) {
  EXPECT_THAT(
      Split(Make(Gpt2Pattern(), SplitBehavior::kIsolated), "I'll  say it's 42x!?\n\n ok "),
      ElementsAre("I", "'ll", " ", " say", " it", "'s", " 42", "x", "!?", "\n\n", " ok", " "));
}

TEST(PreTokenizerTest, SeesTheByteAlphabetAfterTheByteLevelStep) {
  PreTokenizer pre_tokenizer = Make(" ?[^ ]+", SplitBehavior::kIsolated);
  pre_tokenizer.AddByteAlphabet();
  auto digits = Regex::Create("\\p{N}");
  ASSERT_TRUE(digits.ok());
  pre_tokenizer.AddSplit(*std::move(digits), SplitBehavior::kIsolated, /*invert=*/false);
  // 0xB2 is the second byte of U+00F2. The byte alphabet writes it as U+00B2, a superscript two,
  // which is a number.
  EXPECT_THAT(Split(pre_tokenizer, "a1 \u00f2z"), ElementsAre("a", "1", " \xC3", "\xB2", "z"));
}

TEST(PreTokenizerTest, RefusesTheTextWhenAPatternGivesUp) {
  const PreTokenizer pre_tokenizer = Make("(?:a+)+$", SplitBehavior::kIsolated);
  const std::string text = std::string(60, 'a') + "b";
  SplitText split;
  EXPECT_EQ(pre_tokenizer.Split({.text = text}, split).code(), absl::StatusCode::kInvalidArgument);
}

TEST(PreTokenizerTest, EmptyMatchesSplit) {
  EXPECT_THAT(Split(Make("(?=b)", SplitBehavior::kIsolated), "aabab"),
              ElementsAre("aa", "ba", "b"));
  EXPECT_TRUE(Split(Make("x*", SplitBehavior::kIsolated), "").empty());
}

}  // namespace
}  // namespace quire::text
