#pragma once

// Normalization character by character, as in Hugging Face's steps of the same names. Each returns
// nothing when nothing changes; part.text must be valid UTF-8. Linear.

#include <optional>

#include "text/tokenizer/aligned_text.h"

namespace quire::text {

// Each character's full lowercase mapping, whatever its neighbours.
std::optional<AlignedText> Lowercase(const TextPart& part);
// Removes combining marks, such as decomposed accents.
std::optional<AlignedText> StripAccents(const TextPart& part);
// SentencePiece's NMT rules: control characters are removed, and characters that look like a space
// become one.
std::optional<AlignedText> CleanForNmt(const TextPart& part);
// Removes the white space at the start, at the end, or both.
std::optional<AlignedText> StripSpace(const TextPart& part, bool left, bool right);

}  // namespace quire::text
