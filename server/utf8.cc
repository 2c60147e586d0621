#include "server/utf8.h"

#include <string_view>

namespace quire::server {
namespace {

// Bytes of the character at the front of `text`; 0 when it is not one (RFC 3629), and then
// `invalid` is the length of its maximal valid beginning, at least 1.
size_t CharacterLength(std::string_view text, size_t& invalid) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  size_t length = 0;
  unsigned char low = 0x80;   // bounds of the second byte: they exclude overlong forms,
  unsigned char high = 0xBF;  // surrogates and what lies beyond U+10FFFF
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    invalid = 1;
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if (i >= text.size() || byte(i) < low || byte(i) > high) {
      invalid = i;
      return 0;
    }
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

}  // namespace

std::string ToUtf8(std::string text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string repaired;
  size_t kept = 0;  // bytes of `text` that `repaired` already stands for
  for (size_t i = 0; i < text.size();) {
    size_t invalid = 0;
    const size_t length = CharacterLength(std::string_view(text).substr(i), invalid);
    if (length == 0) {
      repaired.append(text, kept, i - kept);
      repaired.append(kReplacement);
      kept = i + invalid;
    }
    i += length == 0 ? invalid : length;
  }
  if (kept == 0) return text;
  repaired.append(text, kept);
  return repaired;
}

}  // namespace quire::server
