#include "text/tokenizer/precompiled_charsmap.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::text {
namespace {

using ::testing::HasSubstr;

std::string Bytes(const std::vector<uint32_t>& units) {
  std::string out;
  for (const uint32_t unit : units) {
    for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(unit >> shift));
  }
  return out;
}

constexpr uint32_t kLeaf = 1u << 8;

// Returns a compiled map. It maps "a" to the text at offset 0 of `texts`, and "b" to the text at
// offset `value_of_b`. The root of the trie has offset 0.
std::string Blob(std::string_view texts, uint32_t value_of_b) {
  std::vector<uint32_t> units(128, 0x80000000u);
  units[0] = 0;
  units['a'] = 'a' | kLeaf | ('a' ^ 100u) << 10;
  units[100] = 0;  // the leaf of "a"
  units['b'] = 'b' | kLeaf | ('b' ^ 101u) << 10;
  units[101] = value_of_b;
  return Bytes({static_cast<uint32_t>(units.size() * 4)}) + Bytes(units) + std::string(texts);
}

std::string Apply(const PrecompiledCharsmap& map, const std::string& text) {
  const auto out = map.Apply({.text = text});
  return out ? out->text : text;
}

TEST(PrecompiledCharsmapTest, ReplacesCharactersAndGraphemes) {
  const std::string texts("xyz\0\0", 5);
  const auto map = PrecompiledCharsmap::Create(Blob(texts, 4));
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(Apply(*map, "a.b.a"), "xyz..xyz");  // b becomes nothing
  // A grapheme of at most 5 bytes is replaced as a whole by the text of its shortest mapped prefix.
  // A longer grapheme is replaced character by character.
  EXPECT_EQ(Apply(*map, "a\u0301|"), "xyz|");
  EXPECT_EQ(Apply(*map, "a\u0301\u0302\u0303"), "xyz\u0301\u0302\u0303");
  EXPECT_FALSE(map->Apply({.text = "cde"}).has_value());
  const auto out = map->Apply({.text = "ca"});
  EXPECT_EQ(out->origins[1].begin, 1u);
  EXPECT_EQ(out->origins[3].end, 2u);
}

TEST(PrecompiledCharsmapTest, RefusesWhatContradictsItself) {
  const auto error = [](const std::string& blob) {
    const auto status = PrecompiledCharsmap::Create(blob).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error(""), HasSubstr("at least 8 bytes, got 0"));
  EXPECT_THAT(error(Bytes({400, 0})), HasSubstr("trie of whole units in 4 bytes, got 400"));
  EXPECT_THAT(error(Bytes({3, 0})), HasSubstr("whole units"));
  EXPECT_THAT(error(Bytes({0, 0})), HasSubstr("whole units"));
  EXPECT_THAT(error(Blob("\xFF", 0)), HasSubstr("UTF-8"));
  EXPECT_THAT(error(Blob(std::string(1025, 'x'), 0)), HasSubstr("at most 1024 bytes"));
}

TEST(PrecompiledCharsmapTest, IndicesThatLeadNowhereMapNothing) {
  // The index of b's text points inside a character.
  EXPECT_EQ(Apply(*PrecompiledCharsmap::Create(Blob("é", 1)), "b"), "b");
  // The index points past the end of the texts.
  EXPECT_EQ(Apply(*PrecompiledCharsmap::Create(Blob("é", 1000)), "b"), "b");
  // The index points to the end of the texts.
  EXPECT_EQ(Apply(*PrecompiledCharsmap::Create(Blob("é", 2)), "b"), "");
  const std::string far = Bytes({8, ~0u << 10, 0});
  EXPECT_EQ(Apply(*PrecompiledCharsmap::Create(far), "abc"), "abc");
}

}  // namespace
}  // namespace quire::text
