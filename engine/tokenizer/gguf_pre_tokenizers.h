#pragma once

// The pre-tokenizers that GGUF files name in tokenizer.ggml.pre.

#include <string>
#include <string_view>
#include <vector>

namespace quire::engine {

struct GgufPreTokenizer {
  std::vector<std::string_view> patterns;  // applied in order, matches isolated
  bool ignore_merges = false;              // a word that is a token is that token
  bool add_bos = false;                    // where the file does not say

  // Whether the same words come out, and the same tokens of them.
  bool SplitsAs(const GgufPreTokenizer& other) const {
    return patterns == other.patterns && ignore_merges == other.ignore_merges;
  }
};

// Null for a name that we do not know. "" is "default", as llama.cpp has it.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);
// Of those that split alike the best-known name, in the order in which to try them.
std::vector<std::string_view> DistinctGgufPreTokenizers();
// All names with commas between, for an error.
std::string GgufPreTokenizerNames();

}  // namespace quire::engine
