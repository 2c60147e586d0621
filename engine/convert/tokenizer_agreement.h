#pragma once

// Compares a GGUF file's tokenizer with the directory's in everything but the words of plain text,
// which TokenizerProbe compares.

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "engine/convert/hf_vocabulary.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire::engine {

// Compares the text of every token, BOS and other tokens added around a text, the tokens that end a
// generation, and the ids of each added token between letters and between spaces. InvalidArgument
// names a difference in ids that nothing in the vocabulary explains, or one that lets a generation
// run on; `warnings` gets the others.
absl::Status CheckAgreement(const Tokenizer& directory, const Tokenizer& gguf,
                            const HfVocabulary& vocabulary, std::vector<std::string>& warnings);

}  // namespace quire::engine
