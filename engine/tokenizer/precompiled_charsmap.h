#pragma once

// SentencePiece's compiled character map ("precompiled_charsmap"): what characters, alone or as
// part of a sequence, become before the text is split; NMT's NFKC, most often.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/tokenizer/aligned_text.h"

namespace quire::engine {

// Immutable; thread-safe. Every index that the map holds is checked when it is followed, so any
// bytes are safe to use.
class PrecompiledCharsmap {
 public:
  // `blob`: the size in bytes of a double-array trie (Darts; little-endian uint32), the trie, then
  // the texts that its values are offsets of, each ended by a NUL. InvalidArgument for sizes that
  // contradict each other, and for texts that are not UTF-8.
  static absl::StatusOr<PrecompiledCharsmap> Create(std::string_view blob);

  // As Hugging Face applies it: a grapheme of at most five bytes is looked up as a whole, and
  // replaced as a whole by what its shortest mapped prefix becomes; where it has none, and in
  // longer ones, each character is looked up alone. Nothing when nothing changes.
  std::optional<AlignedText> Apply(const TextPart& part) const;

 private:
  PrecompiledCharsmap(std::vector<uint32_t> units, std::string texts);
  // What the shortest mapped prefix of `text` becomes; nothing when none is mapped.
  std::optional<std::string_view> Lookup(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace quire::engine
