#pragma once

// SentencePiece's compiled character map ("precompiled_charsmap"). It replaces characters, and
// sequences of characters, before the text is split. Most often the map is that of nmt_nfkc.

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
  // `blob` consists of the size in bytes of a trie, the trie, and the replacement texts, each ended
  // by a NUL. The trie is a Darts double array. The units and the size of the trie are
  // little-endian uint32. The values of the trie are offsets into the texts. Returns
  // InvalidArgument if the sizes contradict each other, if the texts are not UTF-8, or if a text is
  // too long.
  static absl::StatusOr<PrecompiledCharsmap> Create(std::string_view blob);

  // Applies the map as Hugging Face does. A grapheme of at most five bytes that has a mapped prefix
  // is replaced as a whole by the text of the shortest such prefix. In any other grapheme each
  // character is looked up alone. Returns nothing when the text does not change.
  std::optional<AlignedText> Apply(const TextPart& part) const;

 private:
  PrecompiledCharsmap(std::vector<uint32_t> units, std::string texts);
  // Returns the replacement of the shortest mapped prefix of `text`; nothing when no prefix is
  // mapped.
  std::optional<std::string_view> Lookup(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace quire::text
