#pragma once

// Compares the tokenizers of a GGUF file and of a Hugging Face directory in everything except plain
// text, which TokenizerProbe compares.

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "convert/hf_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::convert {

// Compares the text of every token, the tokens that are added before and after a text, and the
// tokens that end a generation. Also compares the ids of each added token: alone, between letters
// and between spaces. Returns InvalidArgument if there is a difference in the text of a token, in
// the tokens around a text, or in BOS, if the directory has BOS. Also returns InvalidArgument if a
// token would no longer end a generation, or if the ids of an added token differ without a known
// reason. Other differences are added to `warnings`.
absl::Status CheckAgreement(const text::Tokenizer& directory, const text::Tokenizer& gguf,
                            const HfVocabulary& vocabulary, std::vector<std::string>& warnings);

}  // namespace quire::convert
