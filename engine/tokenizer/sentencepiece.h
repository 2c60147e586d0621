#pragma once

// What SentencePiece vocabularies share, whichever file they come from.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/tokenizer/pre_tokenizer.h"

namespace quire::engine {

inline constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";  // "▁", U+2581

// The byte that "<0x0A>" stands for; nothing for other pieces.
std::optional<uint8_t> ByteOfPiece(std::string_view piece);

// "▁word" -> " word".
std::string SpacesForMarkers(std::string_view piece);

// Whether a merge of these two would put a marker behind another character.
bool JoinsAcrossSpace(std::string_view left, std::string_view right);
// Splits before each run of markers. When no merge JoinsAcrossSpace, this changes no token, and the
// words are short.
void SplitBeforeSpaces(PreTokenizer& pre_tokenizer);

}  // namespace quire::engine
