#include "base/utf8.h"

namespace quire::base {
namespace {

// The number of continuation bytes that a lead byte needs, and the allowed range of the first one.
struct LeadByte {
  int num_following = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
};

LeadByte Classify(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {.num_following = 1};
  if (byte == 0xE0) return {.num_following = 2, .low = 0xA0};
  if (byte == 0xED) return {.num_following = 2, .high = 0x9F};  // no surrogates
  if (byte >= 0xE1 && byte <= 0xEF) return {.num_following = 2};
  if (byte == 0xF0) return {.num_following = 3, .low = 0x90};
  if (byte >= 0xF1 && byte <= 0xF3) return {.num_following = 3};
  if (byte == 0xF4) return {.num_following = 3, .high = 0x8F};
  return {};
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view text, size_t position) {
  const auto byte = static_cast<uint8_t>(text[position]);
  if (byte < 0x80) return {.code_point = byte, .length = 1, .valid = true};
  const LeadByte lead = Classify(byte);
  if (lead.num_following == 0) return {.length = 1};
  char32_t code_point = byte & (0x3F >> lead.num_following);
  for (int i = 1; i <= lead.num_following; ++i) {
    const size_t at = position + static_cast<size_t>(i);
    if (at >= text.size()) return {.length = static_cast<size_t>(i), .incomplete = true};
    const auto next = static_cast<uint8_t>(text[at]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (next < low || next > high) return {.length = static_cast<size_t>(i)};
    code_point = (code_point << 6) | (next & 0x3F);
  }
  return {.code_point = code_point,
          .length = static_cast<size_t>(lead.num_following) + 1,
          .valid = true};
}

void AppendUtf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (c >> 6)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (c >> 12)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (c >> 18)));
    out.push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool IsValidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (!c.valid) return false;
    i += c.length;
  }
  return true;
}

void AppendLossyUtf8(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (c.valid) {
      out.append(text.substr(i, c.length));
    } else {
      AppendUtf8(kReplacementCharacter, out);
    }
    i += c.length;
  }
}

std::string LossyUtf8(std::string_view text) {
  std::string out;
  AppendLossyUtf8(text, out);
  return out;
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace quire::base
