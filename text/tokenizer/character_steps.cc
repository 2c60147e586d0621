#include "text/tokenizer/character_steps.h"

#include <algorithm>
#include <string>
#include <utf8proc.h>

#include "base/utf8.h"

namespace quire::text {
namespace {

// Replaces each character. map(code_point, out) appends the replacement, which may be empty.
template <typename Map>
std::optional<AlignedText> MapCharacters(const TextPart& part, Map map) {
  AlignedText out;
  std::string bytes;
  for (size_t i = 0; i < part.text.size();) {
    const base::Utf8Char c = base::DecodeUtf8(part.text, i);
    bytes.clear();
    map(c.code_point, bytes);
    out.Append(bytes, part.Origin(i, i + c.length));
    i += c.length;
  }
  if (out.text == part.text) return std::nullopt;
  return out;
}

}  // namespace

std::optional<AlignedText> Lowercase(const TextPart& part) {
  return MapCharacters(part, [](char32_t c, std::string& out) {
    if (c == 0x130) {  // the only character whose lowercase form has two characters
      out.append("i\u0307");
      return;
    }
    base::AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))),
                     out);
  });
}

std::optional<AlignedText> StripAccents(const TextPart& part) {
  return MapCharacters(part, [](char32_t c, std::string& out) {
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
      case UTF8PROC_CATEGORY_MN:
      case UTF8PROC_CATEGORY_MC:
      case UTF8PROC_CATEGORY_ME:
        return;
      default:
        base::AppendUtf8(c, out);
    }
  });
}

std::optional<AlignedText> CleanForNmt(const TextPart& part) {
  return MapCharacters(part, [](char32_t c, std::string& out) {
    const bool control = (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) ||
                         c == 0x7F || c == 0x8F || c == 0x9F;
    if (control) return;
    const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xFEFF || c == 0xFFFD;
    base::AppendUtf8(space ? U' ' : c, out);
  });
}

std::optional<AlignedText> StripSpace(const TextPart& part, bool left, bool right) {
  size_t begin = part.text.size();  // the result if the whole text is white space
  size_t end = 0;
  for (size_t i = 0; i < part.text.size();) {
    const base::Utf8Char c = base::DecodeUtf8(part.text, i);
    i += c.length;
    if (base::IsWhiteSpace(c.code_point)) continue;
    begin = std::min(begin, i - c.length);
    end = i;
  }
  if (!left) begin = 0;
  if (!right) end = part.text.size();
  if (begin == 0 && end == part.text.size()) return std::nullopt;
  AlignedText out;
  if (begin < end) out.AppendFrom(part, begin, end);
  return out;
}

}  // namespace quire::text
