#pragma once

// Normalization steps that work character by character, each like a Hugging Face normalizer. Each
// function returns nothing when the text does not change. part.text must be valid UTF-8. The time
// is linear.

#include <optional>

#include "text/tokenizer/aligned_text.h"

namespace quire::text {

// Replaces each character by its full lowercase mapping, which does not depend on the neighbours of
// the character.
std::optional<AlignedText> Lowercase(const TextPart& part);
// Removes combining marks, such as decomposed accents.
std::optional<AlignedText> StripAccents(const TextPart& part);
// Applies SentencePiece's NMT rules: removes control characters, and replaces characters that look
// like a space by a space.
std::optional<AlignedText> CleanForNmt(const TextPart& part);
// Removes the white space at the start, at the end, or both.
std::optional<AlignedText> StripSpace(const TextPart& part, bool left, bool right);

}  // namespace quire::text
