#include "base/utf8.h"

#include <rapidcheck.h>
#include <string>

#include <gtest/gtest.h>

namespace quire::base {
namespace {

TEST(Utf8Test, OneReplacementForEachMaximalInvalidPart) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(LossyUtf8("h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x99\x82"), "hé € 🙂");
  EXPECT_EQ(LossyUtf8("a\x80z"), "a" + r + "z");
  EXPECT_EQ(LossyUtf8("\xE2\x82z"), r + "z");                             // two bytes are one part
  EXPECT_EQ(LossyUtf8("\xF0\x9F\x99"), r);                                // cut at the end
  EXPECT_EQ(LossyUtf8("\xC0\xAF"), r + r);                                // overlong
  EXPECT_EQ(LossyUtf8("\xE0\x80\x80"), r + r + r);                        // overlong
  EXPECT_EQ(LossyUtf8("\xED\xA0\x80"), r + r + r);                        // a surrogate
  EXPECT_EQ(LossyUtf8("\xF4\x90\x80\x80"), r + r + r + r);                // past U+10FFFF
  EXPECT_EQ(LossyUtf8("\xF1\x80\x80\xE1\x80\xC2\x41"), r + r + r + "A");  // Unicode 3.9, table 3-8
}

TEST(Utf8Test, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    std::string text;
    AppendUtf8(c, text);
    const Utf8Char decoded = DecodeUtf8(text, 0);
    const bool is_surrogate = c >= 0xD800 && c <= 0xDFFF;
    ASSERT_EQ(decoded.valid, !is_surrogate) << static_cast<uint32_t>(c);
    if (!is_surrogate) {
      ASSERT_EQ(decoded.code_point, c);
      ASSERT_EQ(decoded.length, text.size());
    }
  }
}

TEST(Utf8Test, LossyIsValidAndKeepsWhatIsValid) {
  EXPECT_TRUE(rc::check("lossy output is valid, and lossy of it changes nothing",
                        [](const std::string& bytes) {
                          const std::string clean = LossyUtf8(bytes);
                          RC_ASSERT(IsValidUtf8(clean));
                          RC_ASSERT(LossyUtf8(clean) == clean);
                          RC_ASSERT(IsValidUtf8(bytes) == (clean == bytes));
                        }));
}

}  // namespace
}  // namespace quire::base
