#include "engine/tokenizer/normalizer.h"

#include <rapidcheck.h>
#include <string>

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "engine/tokenizer/nfc.h"
#include "tests/engine/tokenizer/goldens.h"

namespace quire::engine {
namespace {

std::string Nfc(const std::string& text) {
  const auto composed = ComposeNfc({.text = text});
  return composed ? composed->text : text;
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

TEST(NfcTest, EqualsTheReference) {
  const nlohmann::json cases = testing::ReadTestJson("nfc.json");
  ASSERT_GT(cases.size(), 80u);
  int changed = 0;
  for (const auto& item : cases) {
    const auto text = item[0].get<std::string>();
    EXPECT_EQ(Nfc(text), item[1].get<std::string>()) << item;
    const auto composed = ComposeNfc({.text = text});
    if (!composed) continue;
    ++changed;
    ExpectOriginsInOrder(*composed, text.size());
  }
  EXPECT_GT(changed, 20);
}

TEST(NfcTest, IsStable) {
  EXPECT_TRUE(rc::check("nfc(nfc(x)) == nfc(x)", [] {
    const auto points = *rc::gen::container<std::vector<uint32_t>>(rc::gen::oneOf(
        rc::gen::inRange<uint32_t>(0x41, 0x5B), rc::gen::inRange<uint32_t>(0x300, 0x345),
        rc::gen::inRange<uint32_t>(0x1100, 0x1200), rc::gen::inRange<uint32_t>(0x900, 0xA00)));
    std::string text;
    for (const uint32_t c : points) base::AppendUtf8(c, text);
    const std::string once = Nfc(text);
    RC_ASSERT(Nfc(once) == once);
  }));
}

TEST(NormalizerTest, StepsKeepWhereBytesCameFrom) {
  Normalizer normalizer;
  normalizer.AddPrepend("▁");
  normalizer.AddReplace(" ", "▁");
  const std::string text = "ab c";
  const auto normal = normalizer.Apply({.text = text, .offset = 10});
  ASSERT_TRUE(normal.has_value());
  EXPECT_EQ(normal->text, "▁ab▁c");
  const TextPart part = normal->Part();
  EXPECT_EQ(part.Origin(0, 3).begin, 10u);
  EXPECT_EQ(part.Origin(0, 3).end, 10u);    // the prefix stands for nothing
  EXPECT_EQ(part.Origin(0, 5).end, 12u);    // "▁ab"
  EXPECT_EQ(part.Origin(5, 8).begin, 12u);  // the space
  EXPECT_EQ(part.Origin(5, 9).end, 14u);    // "▁c"
}

TEST(NormalizerTest, PrependsOnlyWhereAskedTo) {
  Normalizer always;
  always.AddPrependUnlessThere("_", /*only_at_input_start=*/false);
  EXPECT_EQ(always.Apply({.text = "a", .offset = 3})->text, "_a");
  EXPECT_FALSE(always.Apply({.text = "_a"}).has_value());
  EXPECT_FALSE(always.Apply({.text = ""}).has_value());
  Normalizer first;
  first.AddPrependUnlessThere("_", /*only_at_input_start=*/true);
  EXPECT_EQ(first.Apply({.text = "a"})->text, "_a");
  EXPECT_FALSE(first.Apply({.text = "a", .offset = 3}).has_value());
}

TEST(NormalizerTest, ReplacesByPattern) {
  auto regex = Regex::Create(" {2,}");
  ASSERT_TRUE(regex.ok());
  Normalizer normalizer;
  normalizer.AddReplace(*std::move(regex), "~");
  EXPECT_EQ(normalizer.Apply({.text = "a  b c   "})->text, "a~b c~");
  EXPECT_FALSE(normalizer.Apply({.text = "a b"}).has_value());
}

}  // namespace
}  // namespace quire::engine
