#pragma once

// Unicode normalization forms (UAX #15), computed by utf8proc. Vocabularies such as Qwen's and
// GPT-NeoX's need NFC.

#include <optional>

#include "text/tokenizer/aligned_text.h"

namespace quire::text {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Converts `part` to that form; nothing when it has it already. part.text must be valid UTF-8.
// Linear, except for sorting runs of combining marks (n log n).
std::optional<AlignedText> ToNormalForm(NormalForm form, const TextPart& part);

}  // namespace quire::text
