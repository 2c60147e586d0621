#include "text/jinja/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_format.h"

#include "base/utf8.h"
#include "text/jinja/case_table.h"

namespace quire::jinja {
namespace {

bool IsContinuation(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

// Decodes one code point and returns it with its size. Returns U+FFFD and 1 for a byte that is not
// UTF-8.
std::pair<char32_t, size_t> Decode(std::string_view text, size_t at) {
  const base::Utf8Char c = base::DecodeUtf8(text, at);
  return {c.code_point, c.valid ? c.length : 1};
}

const CaseRange* FindRange(const std::vector<CaseRange>& table, char32_t c) {
  auto it = std::upper_bound(table.begin(), table.end(), c,
                             [](char32_t x, const CaseRange& range) { return x < range.first; });
  if (it == table.begin()) return nullptr;
  --it;
  return c <= it->last && (c - it->first) % it->stride == 0 ? &*it : nullptr;
}

bool HasUpper(char32_t c) {  // true for a lowercase letter
  return c < 0x80 ? c >= 'a' && c <= 'z' : FindRange(UpperRanges(), c) != nullptr;
}
bool HasLower(char32_t c) {  // true for an uppercase letter
  return c < 0x80 ? c >= 'A' && c <= 'Z' : FindRange(LowerRanges(), c) != nullptr;
}

void AppendUpper(std::string_view text, size_t at, size_t size, std::string* out) {
  const char32_t c = CodePointAt(text, at);
  if (c < 0x80) {
    out->push_back(HasUpper(c) ? static_cast<char>(c - 32) : static_cast<char>(c));
    return;
  }
  if (const CaseRange* range = FindRange(UpperRanges(), c)) {
    base::AppendUtf8(static_cast<char32_t>(static_cast<int32_t>(c) + range->delta), *out);
    return;
  }
  for (const CaseSpecial& special : UpperSpecials()) {
    if (special.from == c) {
      for (const char32_t to : special.to) base::AppendUtf8(to, *out);
      return;
    }
  }
  out->append(text.substr(at, size));
}

void AppendLower(std::string_view text, size_t at, size_t size, std::string* out) {
  const char32_t c = CodePointAt(text, at);
  if (c < 0x80) {
    out->push_back(HasLower(c) ? static_cast<char>(c + 32) : static_cast<char>(c));
  } else if (const CaseRange* range = FindRange(LowerRanges(), c)) {
    base::AppendUtf8(static_cast<char32_t>(static_cast<int32_t>(c) + range->delta), *out);
  } else {
    out->append(text.substr(at, size));
  }
}

template <typename Function>
void ForEachCodePoint(std::string_view text, Function function) {
  for (size_t at = 0; at < text.size();) {
    const size_t size = CodePointSize(text, at);
    function(at, size);
    at += size;
  }
}

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

size_t CodePointSize(std::string_view text, size_t at) { return Decode(text, at).second; }
char32_t CodePointAt(std::string_view text, size_t at) { return Decode(text, at).first; }

int64_t CountCodePoints(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += CodePointSize(text, at)) ++count;
  return count;
}

std::vector<size_t> CodePointOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  ForEachCodePoint(text, [&](size_t at, size_t) { offsets.push_back(at); });
  offsets.push_back(text.size());
  return offsets;
}

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsPrintable(char32_t c) {
  if (c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD) return false;
  if (c != ' ' && IsSpace(c)) return false;
  const bool format = (c >= 0x600 && c <= 0x605) || c == 0x61C || c == 0x6DD || c == 0x70F ||
                      c == 0x180E || (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
                      (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF0 && c <= 0xFFFB) ||
                      c == 0xFFFE || c == 0xFFFF;
  const bool private_use = (c >= 0xE000 && c <= 0xF8FF) || c >= 0xE0000;
  return !format && !private_use;
}

std::string_view StripLeft(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && IsSpace(CodePointAt(text, at))) at += CodePointSize(text, at);
  return text.substr(at);
}

std::string_view StripRight(std::string_view text) {
  while (!text.empty()) {
    size_t at = text.size() - 1;
    while (at > 0 && text.size() - at < 4 && IsContinuation(text, at)) --at;
    if (at + CodePointSize(text, at) != text.size() || !IsSpace(CodePointAt(text, at))) break;
    text = text.substr(0, at);
  }
  return text;
}

std::string_view StripLeft(std::string_view text, std::string_view chars) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t size = CodePointSize(text, at);
    if (chars.find(text.substr(at, size)) == std::string_view::npos) break;
    at += size;
  }
  return text.substr(at);
}

std::string_view StripRight(std::string_view text, std::string_view chars) {
  const std::vector<size_t> offsets = CodePointOffsets(text);
  size_t count = offsets.size() - 1;
  while (count > 0) {
    const size_t at = offsets[count - 1];
    if (chars.find(text.substr(at, offsets[count] - at)) == std::string_view::npos) break;
    --count;
  }
  return text.substr(0, offsets[count]);
}

std::string Upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCodePoint(text, [&](size_t at, size_t size) { AppendUpper(text, at, size, &out); });
  return out;
}

std::string Lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCodePoint(text, [&](size_t at, size_t size) { AppendLower(text, at, size, &out); });
  return out;
}

std::string Capitalize(std::string_view text) {
  std::string out;
  ForEachCodePoint(text, [&](size_t at, size_t size) {
    at == 0 ? AppendUpper(text, at, size, &out) : AppendLower(text, at, size, &out);
  });
  return out;
}

std::string TitleWords(std::string_view text) {
  std::string out;
  bool in_word = false;
  ForEachCodePoint(text, [&](size_t at, size_t size) {
    in_word ? AppendLower(text, at, size, &out) : AppendUpper(text, at, size, &out);
    const char32_t c = CodePointAt(text, at);
    in_word = HasUpper(c) || HasLower(c);
  });
  return out;
}

bool IsUpper(std::string_view text) {
  bool any = false, wrong = false;
  ForEachCodePoint(text, [&](size_t at, size_t) {
    any = any || HasLower(CodePointAt(text, at));
    wrong = wrong || HasUpper(CodePointAt(text, at));
  });
  return any && !wrong;
}

bool IsLower(std::string_view text) {
  bool any = false, wrong = false;
  ForEachCodePoint(text, [&](size_t at, size_t) {
    any = any || HasUpper(CodePointAt(text, at));
    wrong = wrong || HasLower(CodePointAt(text, at));
  });
  return any && !wrong;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = CodePointAt(text, at);
    const size_t line_end = at;
    at += CodePointSize(text, at);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : line_end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

TracedText ReplaceAll(const TracedText& text, std::string_view from, const TracedText& to,
                      int64_t count) {
  const std::string_view bytes = text.bytes;
  TracedText out;
  size_t at = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    const size_t found =
        from.empty() && done > 0
            ? (at < bytes.size() ? at + CodePointSize(bytes, at) : std::string_view::npos)
            : bytes.find(from, at);
    if (found == std::string_view::npos) break;
    out.Append(text, at, found - at);
    out.Append(to);
    at = found + from.size();
  }
  out.Append(text, at);
  return out;
}

TracedText EscapeHtml(const TracedText& text) {
  TracedText out;
  const auto escape = [&](size_t at, std::string entity) {
    out.Append({std::move(entity), text.Sub(at, 1).has_content()});
  };
  for (size_t at = 0; at < text.bytes.size(); ++at) {
    switch (text.bytes[at]) {
      case '&':
        escape(at, "&amp;");
        break;
      case '<':
        escape(at, "&lt;");
        break;
      case '>':
        escape(at, "&gt;");
        break;
      case '"':
        escape(at, "&#34;");
        break;
      case '\'':
        escape(at, "&#39;");
        break;
      default:
        out.Append(text, at, 1);
    }
  }
  return out;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto shortest =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(shortest.ptr - buffer));
  const std::string sign = text[0] == '-' ? "-" : "";
  text.remove_prefix(sign.size());
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = num_digits > 1 ? "." + digits.substr(1) : "";
    return absl::StrFormat("%s%c%se%c%02d", sign, digits[0], fraction, exponent < 0 ? '-' : '+',
                           std::abs(exponent));
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (exponent + 1 >= num_digits) {
    return sign + digits + std::string(static_cast<size_t>(exponent + 1 - num_digits), '0') + ".0";
  }
  const auto point = static_cast<size_t>(exponent + 1);
  return sign + digits.substr(0, point) + "." + digits.substr(point);
}

std::string StringRepr(std::string_view text) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  ForEachCodePoint(text, [&](size_t at, size_t size) {
    const char32_t c = CodePointAt(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      out.append(text.substr(at, size));
    } else if (c < 0x100) {
      out += absl::StrFormat("\\x%02x", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += absl::StrFormat("\\u%04x", static_cast<uint32_t>(c));
    } else {
      out += absl::StrFormat("\\U%08x", static_cast<uint32_t>(c));
    }
  });
  out.push_back(quote);
  return out;
}

}  // namespace quire::jinja
