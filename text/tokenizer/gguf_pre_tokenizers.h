#pragma once

// The pre-tokenizers that GGUF files name in tokenizer.ggml.pre.

#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

struct GgufPreTokenizer {
  std::vector<std::string_view> patterns;  // applied in order; each match becomes a word
  bool ignore_merges = false;              // a word that equals a token becomes that token
  bool add_bos = false;                    // the default for files without add_bos_token

  // Returns true if both pre-tokenizers split every text into the same words, and every word into
  // the same tokens.
  bool SplitsAs(const GgufPreTokenizer& other) const {
    return patterns == other.patterns && ignore_merges == other.ignore_merges;
  }
};

// Returns null for an unknown name. "" means "default", as in llama.cpp.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);
// Returns one name, the best known, for each group of pre-tokenizers that split alike. The order is
// the one in which conversion tries the names.
std::vector<std::string_view> DistinctGgufPreTokenizers();
// Returns all names, separated by commas, for an error message.
std::string GgufPreTokenizerNames();

}  // namespace quire::text
