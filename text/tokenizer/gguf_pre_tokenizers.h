#pragma once

// The pre-tokenizers that GGUF files name in tokenizer.ggml.pre.

#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

struct GgufPreTokenizer {
  std::vector<std::string_view> patterns;  // applied in order, matches isolated
  bool ignore_merges = false;              // a word that is a token is that token
  bool add_bos = false;                    // if the file does not say

  // True if both give the same words, and the same tokens for them.
  bool SplitsAs(const GgufPreTokenizer& other) const {
    return patterns == other.patterns && ignore_merges == other.ignore_merges;
  }
};

// Null for an unknown name. "" is "default", as in llama.cpp.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);
// One name, the best known, of each group that splits alike, in the order in which to try them.
std::vector<std::string_view> DistinctGgufPreTokenizers();
// All names with commas between, for an error.
std::string GgufPreTokenizerNames();

}  // namespace quire::text
