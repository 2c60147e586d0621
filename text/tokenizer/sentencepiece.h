#pragma once

// Helpers for SentencePiece vocabularies of both tokenizer.json and GGUF files.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer/pre_tokenizer.h"

namespace quire::text {

inline constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";  // "▁", U+2581

// Returns the byte of a piece such as "<0x0A>"; nothing for other pieces.
std::optional<uint8_t> ByteOfPiece(std::string_view piece);

// Replaces each space marker by a space: "▁word" becomes " word".
std::string SpacesForMarkers(std::string_view piece);

// Returns true if merging `left` and `right` would put a space marker after a character that is not
// a space marker.
bool JoinsAcrossSpace(std::string_view left, std::string_view right);
// Adds a split before each run of space markers. The split keeps words short. If JoinsAcrossSpace
// is false for every merge, the split changes no token.
void SplitBeforeSpaces(PreTokenizer& pre_tokenizer);

}  // namespace quire::text
