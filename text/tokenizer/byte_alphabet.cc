#include "text/tokenizer/byte_alphabet.h"

#include <array>

#include "base/utf8.h"

namespace quire::text {
namespace {

// Bytes that are not printable Latin-1 characters become the characters from U+0100 on, in order:
// byte 0 becomes U+0100.
constexpr char32_t kFirstSubstitute = 0x100;

bool IsPrintableLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int16_t, 0x200> bytes;  // by code point; -1: not in the alphabet

  Alphabet() {
    bytes.fill(-1);
    char32_t substitute = kFirstSubstitute;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t c = IsPrintableLatin1(byte) ? static_cast<char32_t>(byte) : substitute++;
      base::AppendUtf8(c, characters[static_cast<size_t>(byte)]);
      bytes[c] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& GetAlphabet() {
  static const Alphabet* const alphabet = new Alphabet;
  return *alphabet;
}

}  // namespace

std::string_view ByteCharacter(uint8_t byte) { return GetAlphabet().characters[byte]; }

std::optional<uint8_t> CharacterByte(char32_t code_point) {
  const auto& bytes = GetAlphabet().bytes;
  if (code_point >= bytes.size() || bytes[code_point] < 0) return std::nullopt;
  return static_cast<uint8_t>(bytes[code_point]);
}

std::optional<std::string> BytesOfByteLevelPiece(std::string_view piece) {
  std::string bytes;
  bytes.reserve(piece.size());
  for (size_t i = 0; i < piece.size();) {
    const base::Utf8Char c = base::DecodeUtf8(piece, i);
    const std::optional<uint8_t> byte = c.valid ? CharacterByte(c.code_point) : std::nullopt;
    if (!byte) return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
    i += c.length;
  }
  return bytes;
}

}  // namespace quire::text
