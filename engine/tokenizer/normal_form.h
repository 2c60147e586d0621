#pragma once

// Unicode normalization forms (UAX #15), which NFC vocabularies such as Qwen's and GPT-NeoX's ask
// for, through utf8proc.

#include <optional>

#include "engine/tokenizer/aligned_text.h"

namespace quire::engine {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// `part` in that form; nothing when it is in it already. part.text must be valid UTF-8. Linear, but
// for sorting runs of combining marks (n log n).
std::optional<AlignedText> ToNormalForm(NormalForm form, const TextPart& part);

}  // namespace quire::engine
