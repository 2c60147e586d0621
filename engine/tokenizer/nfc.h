#pragma once

// Unicode Normalization Form C (UAX #15), which NFC vocabularies such as Qwen's and GPT-NeoX's ask
// for. Tables: nfc_tables.inc, made by make_nfc_tables.py.

#include <optional>

#include "engine/tokenizer/aligned_text.h"

namespace quire::engine {

// The NFC of `part`; nothing when it is in NFC already. part.text must be valid UTF-8. Linear, but
// for sorting runs of combining marks.
std::optional<AlignedText> ComposeNfc(const TextPart& part);

}  // namespace quire::engine
