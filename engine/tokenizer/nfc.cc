#include "engine/tokenizer/nfc.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/utf8.h"

namespace quire::engine {
namespace {

struct CombiningClassRange {
  uint32_t first;
  uint32_t last;
  uint8_t combining_class;
};
struct Decomposition {
  uint32_t code_point;
  uint32_t first;
  uint32_t second;  // 0: none
};
struct Composition {
  uint32_t first;
  uint32_t second;
  uint32_t composite;
};
struct CodePointRange {
  uint32_t first;
  uint32_t last;
};

#include "engine/tokenizer/nfc_tables.inc"

// Hangul syllables compose by arithmetic (The Unicode Standard, 3.12).
constexpr uint32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr uint32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = 11172;

// The range that holds `c`; null when none does.
template <typename Range, size_t n>
const Range* FindRange(const Range (&ranges)[n], uint32_t c) {
  const Range* range =
      std::lower_bound(std::begin(ranges), std::end(ranges), c,
                       [](const Range& r, uint32_t value) { return r.last < value; });
  return range != std::end(ranges) && range->first <= c ? range : nullptr;
}

uint8_t CombiningClass(uint32_t c) {
  const CombiningClassRange* range = FindRange(kCombiningClasses, c);
  return range == nullptr ? 0 : range->combining_class;
}

struct Mark {
  uint32_t code_point;
  uint8_t combining_class;
  ByteRange origin;
};

void Decompose(uint32_t c, ByteRange origin, std::vector<Mark>& out) {
  if (c >= kSBase && c < kSBase + kSCount) {
    const uint32_t s = c - kSBase;
    out.push_back({kLBase + s / (kVCount * kTCount), 0, origin});
    out.push_back({kVBase + s % (kVCount * kTCount) / kTCount, 0, origin});
    if (s % kTCount != 0) out.push_back({kTBase + s % kTCount, 0, origin});
    return;
  }
  const Decomposition* found =
      std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                       [](const Decomposition& d, uint32_t value) { return d.code_point < value; });
  if (found == std::end(kDecompositions) || found->code_point != c) {
    out.push_back({c, CombiningClass(c), origin});
    return;
  }
  Decompose(found->first, origin, out);
  if (found->second != 0) Decompose(found->second, origin, out);
}

// 0: the two do not compose.
uint32_t Compose(uint32_t first, uint32_t second) {
  if (first >= kLBase && first < kLBase + kLCount && second >= kVBase &&
      second < kVBase + kVCount) {
    return kSBase + ((first - kLBase) * kVCount + (second - kVBase)) * kTCount;
  }
  if (first >= kSBase && first < kSBase + kSCount && (first - kSBase) % kTCount == 0 &&
      second > kTBase && second < kTBase + kTCount) {
    return first + (second - kTBase);
  }
  const Composition* found = std::lower_bound(
      std::begin(kCompositions), std::end(kCompositions), Composition{first, second, 0},
      [](const Composition& a, const Composition& b) {
        return a.first != b.first ? a.first < b.first : a.second < b.second;
      });
  const bool is_pair =
      found != std::end(kCompositions) && found->first == first && found->second == second;
  return is_pair ? found->composite : 0;
}

bool MayChange(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const base::Utf8Char c = base::DecodeUtf8(text, i);
    if (FindRange(kMayChange, c.code_point) != nullptr) return true;
    i += c.length;
  }
  return false;
}

// Marks of one base, in canonical order: sorted by class, equal classes as they came.
void SortMarks(std::vector<Mark>& marks) {
  for (auto begin = marks.begin(); begin != marks.end();) {
    begin = std::find_if(begin, marks.end(), [](const Mark& m) { return m.combining_class != 0; });
    const auto end =
        std::find_if(begin, marks.end(), [](const Mark& m) { return m.combining_class == 0; });
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

void ComposeMarks(std::vector<Mark>& marks) {
  size_t kept = 0;
  size_t starter = marks.size();  // index of the last character of class 0; none yet
  uint8_t last_class = 0;
  for (const Mark mark : marks) {
    if (starter < kept) {
      // Blocked when something of the same or a higher class stands between.
      const bool adjacent = starter + 1 == kept;
      const bool blocked = !adjacent && last_class >= mark.combining_class;
      const uint32_t composite = blocked ? 0 : Compose(marks[starter].code_point, mark.code_point);
      if (composite != 0) {
        marks[starter].code_point = composite;
        marks[starter].origin.end = std::max(marks[starter].origin.end, mark.origin.end);
        continue;
      }
    }
    if (mark.combining_class == 0) starter = kept;
    last_class = mark.combining_class;
    marks[kept++] = mark;
  }
  marks.resize(kept);
}

}  // namespace

std::optional<AlignedText> ComposeNfc(const TextPart& part) {
  if (!MayChange(part.text)) return std::nullopt;
  std::vector<Mark> marks;
  marks.reserve(part.text.size());
  for (size_t i = 0; i < part.text.size();) {
    const base::Utf8Char c = base::DecodeUtf8(part.text, i);
    Decompose(c.code_point, part.Origin(i, i + c.length), marks);
    i += c.length;
  }
  SortMarks(marks);
  ComposeMarks(marks);

  AlignedText out;
  std::string bytes;
  ByteRange at;  // reordered marks must not make the offsets go back
  for (const Mark& mark : marks) {
    at = {std::max(at.begin, mark.origin.begin), std::max(at.end, mark.origin.end)};
    bytes.clear();
    base::AppendUtf8(mark.code_point, bytes);
    out.Append(bytes, at);
  }
  return out;
}

}  // namespace quire::engine
