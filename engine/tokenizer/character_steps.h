#pragma once

// Normalization character by character, as Hugging Face's steps of the same names have it. Each
// gives nothing when nothing changes; part.text must be valid UTF-8. Linear.

#include <optional>

#include "engine/tokenizer/aligned_text.h"

namespace quire::engine {

// Each character's full lowercase mapping, whatever stands around it.
std::optional<AlignedText> Lowercase(const TextPart& part);
// Leaves out the marks: what is left of decomposed accents.
std::optional<AlignedText> StripAccents(const TextPart& part);
// SentencePiece's NMT rules: control characters go, and what only looks like space becomes one.
std::optional<AlignedText> CleanForNmt(const TextPart& part);
// Leaves out the white space at the start, at the end.
std::optional<AlignedText> StripSpace(const TextPart& part, bool left, bool right);

}  // namespace quire::engine
