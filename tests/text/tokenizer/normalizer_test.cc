#include "text/tokenizer/normalizer.h"

#include <string>

#include <gtest/gtest.h>

#include "text/tokenizer/character_steps.h"

namespace quire::text {
namespace {

TEST(NormalizerTest, StepsKeepWhereBytesCameFrom) {
  Normalizer normalizer;
  normalizer.AddPrepend("▁");
  normalizer.AddReplace(" ", "▁");
  const std::string text = "ab c";
  const auto normal = *normalizer.Apply({.text = text, .offset = 10});
  ASSERT_TRUE(normal.has_value());
  EXPECT_EQ(normal->text, "▁ab▁c");
  const TextPart part = normal->Part();
  EXPECT_EQ(part.Origin(0, 3).begin, 10u);
  EXPECT_EQ(part.Origin(0, 3).end, 10u);    // the prefix comes from no byte
  EXPECT_EQ(part.Origin(0, 5).end, 12u);    // "▁ab"
  EXPECT_EQ(part.Origin(5, 8).begin, 12u);  // the space
  EXPECT_EQ(part.Origin(5, 9).end, 14u);    // "▁c"
}

TEST(NormalizerTest, PrependsOnlyWhereAskedTo) {
  Normalizer always;
  always.AddPrependUnlessThere("_", /*only_at_input_start=*/false);
  EXPECT_EQ((*always.Apply({.text = "a", .offset = 3}))->text, "_a");
  EXPECT_FALSE(always.Apply({.text = "_a"})->has_value());
  EXPECT_FALSE(always.Apply({.text = ""})->has_value());
  Normalizer first;
  first.AddPrependUnlessThere("_", /*only_at_input_start=*/true);
  EXPECT_EQ((*first.Apply({.text = "a"}))->text, "_a");
  EXPECT_FALSE(first.Apply({.text = "a", .offset = 3})->has_value());
}

TEST(NormalizerTest, ReplacesByPattern) {
  auto regex = Regex::Create(" {2,}");
  ASSERT_TRUE(regex.ok());
  Normalizer normalizer;
  normalizer.AddReplace(*std::move(regex), "~");
  EXPECT_EQ((*normalizer.Apply({.text = "a  b c   "}))->text, "a~b c~");
  EXPECT_FALSE(normalizer.Apply({.text = "a b"})->has_value());
}

TEST(NormalizerTest, RefusesTheTextWhenAPatternGivesUp) {
  auto regex = Regex::Create("(?:a+)+$");
  ASSERT_TRUE(regex.ok());
  Normalizer normalizer;
  normalizer.AddReplace(*std::move(regex), "~");
  EXPECT_EQ(normalizer.Apply({.text = std::string(60, 'a') + "b"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CharacterStepsTest, LowercaseIsEachCharactersFullMapping) {
  EXPECT_EQ(Lowercase({.text = "\u0130STANBUL \u01c5 \u03a3"})->text,
            "i\u0307stanbul \u01c6 \u03c3");
  EXPECT_FALSE(Lowercase({.text = "\u00df1 x"}).has_value());
}

TEST(CharacterStepsTest, AccentsAreMarksOfEveryKind) {
  EXPECT_EQ(StripAccents({.text = "e\u0301\u0903x\u20dd\u00e9"})->text, "ex\u00e9");
  EXPECT_FALSE(StripAccents({.text = "\u00e9"}).has_value());
}

TEST(CharacterStepsTest, NmtDropsControlsAndMakesSpaces) {
  const std::string text = "a\x01\n\u200b\ufeff\u2581\x0b\u00a0\u200a";
  EXPECT_EQ(CleanForNmt({.text = text})->text, "a    \u00a0\u200a");
  EXPECT_FALSE(CleanForNmt({.text = "a b"}).has_value());
}

TEST(CharacterStepsTest, StripTakesUnicodeSpaceFromTheEndsAskedFor) {
  const std::string text = "\u3000\t a b \n";
  EXPECT_EQ(StripSpace({.text = text}, true, true)->text, "a b");
  EXPECT_EQ(StripSpace({.text = text}, true, false)->text, "a b \n");
  EXPECT_EQ(StripSpace({.text = text}, false, true)->text, "\u3000\t a b");
  EXPECT_EQ(StripSpace({.text = " \n"}, true, false)->text, "");
  EXPECT_EQ(StripSpace({.text = " \n"}, false, true)->text, "");
  EXPECT_FALSE(StripSpace({.text = " x "}, false, false).has_value());
  EXPECT_EQ(StripSpace({.text = " x", .offset = 5}, true, true)->origins[0].begin, 6u);
}

}  // namespace
}  // namespace quire::text
