#pragma once

// A text that normalization may have rewritten. Each byte of the text has an origin: the range of
// input bytes that it comes from.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

// A range of input bytes, half open. 32 bits suffice: the frontend keeps prompts far below 4 GiB.
struct ByteRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Returns true if one of `ranges`, which are ascending and disjoint, has a byte of `range`.
inline bool Overlaps(std::span<const ByteRange> ranges, ByteRange range) {
  const auto next = std::ranges::upper_bound(ranges, range.begin, {}, &ByteRange::end);
  return next != ranges.end() && next->begin < range.end;
}

// A view of a text and the origins of its bytes. From one byte of the text to the next, neither
// `begin` nor `end` of the origin decreases.
struct TextPart {
  std::string_view text;
  const ByteRange* origins = nullptr;  // one per byte; null: text[i] is input byte offset + i
  uint32_t offset = 0;                 // used only if `origins` is null

  // Returns the range of input bytes from which text[begin, end) comes.
  ByteRange Origin(size_t begin, size_t end) const {
    if (origins == nullptr || text.empty()) {
      return {offset + static_cast<uint32_t>(begin), offset + static_cast<uint32_t>(end)};
    }
    if (begin == end) {
      const uint32_t at = begin < text.size() ? origins[begin].begin : origins[text.size() - 1].end;
      return {at, at};
    }
    return {origins[begin].begin, origins[end - 1].end};
  }
  TextPart Sub(size_t begin, size_t end) const {
    return {.text = text.substr(begin, end - begin),
            .origins = origins == nullptr ? nullptr : origins + begin,
            .offset = offset + static_cast<uint32_t>(begin)};
  }
};

// A rewritten text and the origins of its bytes. Part() returns a view of both.
struct AlignedText {
  std::string text;
  std::vector<ByteRange> origins;

  void Append(std::string_view bytes, ByteRange origin) {
    text.append(bytes);
    origins.insert(origins.end(), bytes.size(), origin);
  }
  // Appends part.text[begin, end) unchanged.
  void AppendFrom(const TextPart& part, size_t begin, size_t end) {
    text.append(part.text.substr(begin, end - begin));
    for (size_t i = begin; i < end; ++i) origins.push_back(part.Origin(i, i + 1));
  }
  TextPart Part() const { return {.text = text, .origins = origins.data()}; }
};

}  // namespace quire::text
