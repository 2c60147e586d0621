#pragma once

// GPT-2's byte alphabet: each byte as one printable character, so that a vocabulary of bytes can be
// written as text. Space is "Ġ", newline "Ċ"; printable Latin-1 stands for itself.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire::text {

// The character that stands for `byte`, in UTF-8.
std::string_view ByteCharacter(uint8_t byte);
// The byte that `code_point` stands for; nothing for a character outside the alphabet.
std::optional<uint8_t> CharacterByte(char32_t code_point);

// "Ġword" -> " word"; nothing when a character is outside the alphabet.
std::optional<std::string> BytesOfByteLevelPiece(std::string_view piece);

}  // namespace quire::text
