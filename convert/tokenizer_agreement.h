#pragma once

// Compares a GGUF file's tokenizer with the directory's in everything but the words of plain text,
// which TokenizerProbe compares.

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "convert/hf_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::convert {

// Compares the text of every token, BOS and the other tokens that are added around a text, the
// tokens that end a generation, and the ids of each added token: alone, between letters and between
// spaces. InvalidArgument names a token whose text differs, other tokens around a text, a token
// that would no longer end a generation, or a difference in ids that nothing in the vocabulary
// explains. `warnings` gets the other differences.
absl::Status CheckAgreement(const text::Tokenizer& directory, const text::Tokenizer& gguf,
                            const HfVocabulary& vocabulary, std::vector<std::string>& warnings);

}  // namespace quire::convert
