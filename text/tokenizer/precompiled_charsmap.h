#pragma once

// SentencePiece's compiled character map ("precompiled_charsmap"), which replaces characters and
// sequences of them before the text is split; most often NMT's NFKC.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "text/tokenizer/aligned_text.h"

namespace quire::text {

// Immutable; thread-safe. Every index in the map is checked when it is followed, so any bytes are
// safe to use.
class PrecompiledCharsmap {
 public:
  // `blob`: the size in bytes of a double-array trie (Darts; little-endian uint32), the trie, then
  // the texts, each ended by a NUL, into which its values are offsets. InvalidArgument for sizes
  // that contradict each other, and for texts that are not UTF-8.
  static absl::StatusOr<PrecompiledCharsmap> Create(std::string_view blob);

  // As Hugging Face applies it: a grapheme of at most five bytes is looked up as a whole, and
  // replaced as a whole by the text of its shortest mapped prefix. If it has none, and in longer
  // graphemes, each character is looked up alone. Returns nothing when nothing changes.
  std::optional<AlignedText> Apply(const TextPart& part) const;

 private:
  PrecompiledCharsmap(std::vector<uint32_t> units, std::string texts);
  // The replacement of the shortest mapped prefix of `text`; nothing when none is mapped.
  std::optional<std::string_view> Lookup(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace quire::text
