#pragma once

// UTF-8 decoding that never fails. Invalid bytes become U+FFFD by the rule "substitution of maximal
// subparts" (section 3.9 of the Unicode Standard), as in Rust's from_utf8_lossy.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::base {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

struct Utf8Char {
  char32_t code_point = kReplacementCharacter;
  size_t length = 0;  // in bytes; for an invalid part, the length of the maximal subpart
  bool valid = false;
  bool incomplete = false;  // invalid only because the text ends: more bytes could make it valid
};

// Decodes the character at `position`, which must be below text.size().
Utf8Char DecodeUtf8(std::string_view text, size_t position);

void AppendUtf8(char32_t code_point, std::string& out);
bool IsValidUtf8(std::string_view text);
// Appends `text` with every invalid part as U+FFFD.
void AppendLossyUtf8(std::string_view text, std::string& out);
std::string LossyUtf8(std::string_view text);

// Returns true for characters with the Unicode property White_Space.
bool IsWhiteSpace(char32_t code_point);

}  // namespace quire::base
