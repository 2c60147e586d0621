#pragma once

// Unicode normalization forms (UAX #15), computed by utf8proc. Vocabularies such as those of Qwen
// and GPT-NeoX need NFC.

#include <optional>

#include "text/tokenizer/aligned_text.h"

namespace quire::text {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Converts `part` to `form`. May return nothing when the text already has that form. part.text must
// be valid UTF-8. The time is linear, except that sorting a run of n combining marks takes
// O(n log n).
std::optional<AlignedText> ToNormalForm(NormalForm form, const TextPart& part);

}  // namespace quire::text
