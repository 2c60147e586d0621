#include "text/tokenizer/precompiled_charsmap.h"

#include <algorithm>
#include <utf8proc.h>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/interrupt.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

constexpr size_t kUnitBytes = sizeof(uint32_t);
constexpr size_t kMaxGraphemeBytes = 5;
constexpr size_t kMaxTextBytes = 1024;  // the longest replacement in Unicode has 33 bytes

uint32_t ReadUnit(std::string_view bytes, size_t at) {
  uint32_t unit = 0;
  for (size_t i = 0; i < kUnitBytes; ++i) {
    unit |= uint32_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  }
  return unit;
}

// The fields of a Darts unit.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Label(uint32_t unit) { return unit & (uint32_t{1} << 31 | 0xFF); }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & (1u << 9)) >> 6); }
uint32_t Value(uint32_t unit) { return unit & ~(uint32_t{1} << 31); }

absl::Status InvalidCharsmap(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("precompiled_charsmap: ", what));
}

}  // namespace

PrecompiledCharsmap::PrecompiledCharsmap(std::vector<uint32_t> units, std::string texts)
    : units_(std::move(units)), texts_(std::move(texts)) {}

absl::StatusOr<PrecompiledCharsmap> PrecompiledCharsmap::Create(std::string_view blob) {
  if (blob.size() < 2 * kUnitBytes) {
    return InvalidCharsmap(
        absl::StrCat("want at least ", 2 * kUnitBytes, " bytes, got ", blob.size(), " bytes"));
  }
  const uint32_t trie_bytes = ReadUnit(blob, 0);
  blob.remove_prefix(kUnitBytes);
  if (trie_bytes == 0 || trie_bytes % kUnitBytes != 0 || trie_bytes > blob.size()) {
    return InvalidCharsmap(absl::StrCat("want a trie of whole units in ", blob.size(),
                                        " bytes, got ", trie_bytes, " bytes"));
  }
  std::vector<uint32_t> units;
  units.reserve(trie_bytes / kUnitBytes);
  for (size_t at = 0; at < trie_bytes; at += kUnitBytes) units.push_back(ReadUnit(blob, at));
  const std::string_view texts = blob.substr(trie_bytes);
  if (!base::IsValidUtf8(texts)) return InvalidCharsmap("the texts are not UTF-8");
  for (size_t at = 0; at < texts.size();) {
    const size_t length = texts.substr(at).find('\0');
    if (std::min(length, texts.size() - at) > kMaxTextBytes) {
      return InvalidCharsmap(absl::StrCat("want texts of at most ", kMaxTextBytes, " bytes"));
    }
    if (length == std::string_view::npos) break;
    at += length + 1;
  }
  return PrecompiledCharsmap(std::move(units), std::string(texts));
}

std::optional<std::string_view> PrecompiledCharsmap::Lookup(std::string_view text) const {
  uint32_t position = Offset(units_[0]);
  for (const char c : text) {
    const uint32_t byte = static_cast<uint8_t>(c);
    if (byte == 0) break;
    position ^= byte;
    if (position >= units_.size() || Label(units_[position]) != byte) break;
    const uint32_t unit = units_[position];
    position ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (position >= units_.size()) break;
    const uint32_t at = Value(units_[position]);
    // In a corrupt map, an offset may be past the texts or inside a character.
    if (at > texts_.size() || (at < texts_.size() && (texts_[at] & 0xC0) == 0x80)) break;
    const std::string_view rest = std::string_view(texts_).substr(at);
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

std::optional<AlignedText> PrecompiledCharsmap::Apply(const TextPart& part) const {
  const std::string_view text = part.text;
  AlignedText out;
  bool changed = false;
  const auto replace = [&](size_t begin, size_t end) {
    const auto by = Lookup(text.substr(begin, end - begin));
    if (by) {
      out.Append(*by, part.Origin(begin, end));
      changed = true;
    }
    return by.has_value();
  };
  for (size_t begin = 0; begin < text.size() && !base::Interrupted();) {
    base::Utf8Char c = base::DecodeUtf8(text, begin);
    size_t end = begin + c.length;
    utf8proc_int32_t state = 0;
    for (char32_t previous = c.code_point; end < text.size(); previous = c.code_point) {
      c = base::DecodeUtf8(text, end);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(previous),
                                           static_cast<utf8proc_int32_t>(c.code_point), &state)) {
        break;
      }
      end += c.length;
    }
    if (end - begin > kMaxGraphemeBytes || !replace(begin, end)) {
      for (size_t at = begin; at < end;) {
        const size_t next = at + base::DecodeUtf8(text, at).length;
        if (!replace(at, next)) out.AppendFrom(part, at, next);
        at = next;
      }
    }
    begin = end;
  }
  if (!changed) return std::nullopt;
  return out;
}

}  // namespace quire::text
