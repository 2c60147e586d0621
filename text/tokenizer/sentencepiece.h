#pragma once

// Helpers for SentencePiece vocabularies, whichever file they come from.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer/pre_tokenizer.h"

namespace quire::text {

inline constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";  // "▁", U+2581

// The byte of a piece such as "<0x0A>"; nothing for other pieces.
std::optional<uint8_t> ByteOfPiece(std::string_view piece);

// "▁word" -> " word".
std::string SpacesForMarkers(std::string_view piece);

// True if a merge of these two would put a marker after another character.
bool JoinsAcrossSpace(std::string_view left, std::string_view right);
// Splits before each run of markers. If no merge JoinsAcrossSpace, this changes no token and keeps
// words short.
void SplitBeforeSpaces(PreTokenizer& pre_tokenizer);

}  // namespace quire::text
