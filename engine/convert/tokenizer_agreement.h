#pragma once

// Whether a GGUF file's tokenizer says what the directory's says, in all but the words of plain
// text, which TokenizerProbe compares.

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "engine/convert/hf_vocabulary.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire::engine {

// Compares the text of every token, BOS and what else is added around a text, the ends of a
// generation, and what becomes of each added token between letters and between spaces.
// InvalidArgument names a difference that changes ids for no reason that the vocabulary knows, or
// that lets a generation run on; `warnings` gets the others.
absl::Status CheckAgreement(const Tokenizer& directory, const Tokenizer& gguf,
                            const HfVocabulary& vocabulary, std::vector<std::string>& warnings);

}  // namespace quire::engine
