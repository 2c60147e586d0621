#pragma once

// GPT-2's byte alphabet, which maps each byte to one printable character, so that a vocabulary of
// bytes can be written as text. The space becomes "Ġ" and the newline "Ċ". A printable Latin-1
// character stands for itself.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire::text {

// Returns the character that stands for `byte`, in UTF-8.
std::string_view ByteCharacter(uint8_t byte);
// Returns the byte that `code_point` stands for; nothing for a character outside the alphabet.
std::optional<uint8_t> CharacterByte(char32_t code_point);

// Converts a piece to bytes: "Ġword" to " word". Returns nothing when a character is outside the
// alphabet.
std::optional<std::string> BytesOfByteLevelPiece(std::string_view piece);

}  // namespace quire::text
