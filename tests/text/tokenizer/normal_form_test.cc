#include "text/tokenizer/normal_form.h"

#include <rapidcheck.h>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "tests/text/tokenizer/goldens.h"

namespace quire::text {
namespace {

constexpr NormalForm kForms[] = {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc,
                                 NormalForm::kNfkd};

std::string In(NormalForm form, const std::string& text) {
  const auto changed = ToNormalForm(form, {.text = text});
  return changed ? changed->text : text;
}

void ExpectOriginsInOrder(const AlignedText& text, size_t input_size) {
  ASSERT_EQ(text.origins.size(), text.text.size());
  ByteRange last;
  for (const ByteRange& range : text.origins) {
    EXPECT_LE(last.begin, range.begin);
    EXPECT_LE(last.end, range.end);
    EXPECT_LE(range.begin, range.end);
    EXPECT_LE(range.end, input_size);
    last = range;
  }
}

TEST(NormalFormTest, EqualsPythonsUnicodedata) {
  const nlohmann::json cases = testing::ReadTestJson("normal_forms.json");
  ASSERT_GT(cases.size(), 80u);
  int changed = 0;
  for (const auto& item : cases) {
    const auto text = item[0].get<std::string>();
    for (size_t k = 0; k < std::size(kForms); ++k) {
      EXPECT_EQ(In(kForms[k], text), item[1 + k].get<std::string>()) << k << " " << item;
      const auto form = ToNormalForm(kForms[k], {.text = text});
      if (!form) continue;
      ++changed;
      ExpectOriginsInOrder(*form, text.size());
    }
  }
  EXPECT_GT(changed, 150);
}

// The normal form is computed grapheme by grapheme. So the parts of a composite character must be
// in one grapheme. Otherwise composing its decomposition would not restore it.
TEST(NormalFormTest, EveryCharacterComesBackFromItsDecomposition) {
  int composed = 0;
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    base::AppendUtf8(c, text);
    const std::string parts = In(NormalForm::kNfd, text);
    composed += In(NormalForm::kNfc, parts) != parts ? 1 : 0;
    ASSERT_EQ(In(NormalForm::kNfc, parts), In(NormalForm::kNfc, text)) << std::hex << uint32_t{c};
    ASSERT_EQ(In(NormalForm::kNfkc, In(NormalForm::kNfkd, text)), In(NormalForm::kNfkc, text))
        << std::hex << uint32_t{c};
  }
  EXPECT_GT(composed, 11172 + 900);  // 11172 Hangul syllables, and other characters
}

// utf8proc 2.8 by itself would drop U+11A7.
TEST(NormalFormTest, WhatIsNoHangulFinalStays) {
  EXPECT_EQ(In(NormalForm::kNfc, "\u110b\u116c\u11a7"), "\uc678\u11a7");
  EXPECT_EQ(In(NormalForm::kNfc, "\u110b\u116c\u11a8"), "\uc679");
}

TEST(NormalFormTest, IsStable) {
  EXPECT_TRUE(rc::check("form(form(x)) == form(x)", [] {
    const auto points = *rc::gen::container<std::vector<uint32_t>>(rc::gen::oneOf(
        rc::gen::inRange<uint32_t>(0x41, 0x5B), rc::gen::inRange<uint32_t>(0x300, 0x345),
        rc::gen::inRange<uint32_t>(0x1100, 0x1200), rc::gen::inRange<uint32_t>(0x900, 0xA00),
        rc::gen::inRange<uint32_t>(0x3130, 0x3190), rc::gen::inRange<uint32_t>(0xFF60, 0xFFE0)));
    std::string text;
    for (const uint32_t c : points) base::AppendUtf8(c, text);
    for (const NormalForm form : kForms) {
      const std::string once = In(form, text);
      RC_ASSERT(In(form, once) == once);
    }
    RC_ASSERT(In(NormalForm::kNfc, In(NormalForm::kNfd, text)) == In(NormalForm::kNfc, text));
    RC_ASSERT(In(NormalForm::kNfkd, In(NormalForm::kNfc, text)) == In(NormalForm::kNfkd, text));
  }));
}

TEST(NormalFormTest, ATextOfMarksAloneTakesNoQuadraticTime) {
  std::string marks = "a";
  std::string sorted = "a";
  // Ordering the marks in quadratic time would take a minute.
  constexpr int kPairs = 100'000;
  for (int i = 0; i < kPairs; ++i) marks += "\u0301\u0323";
  for (int i = 0; i < kPairs; ++i) sorted += "\u0323";
  for (int i = 0; i < kPairs; ++i) sorted += "\u0301";
  EXPECT_EQ(In(NormalForm::kNfd, marks), sorted);
}

}  // namespace
}  // namespace quire::text
