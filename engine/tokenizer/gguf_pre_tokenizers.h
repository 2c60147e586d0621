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
};

// Null for a name that we do not know. "" is "default", as llama.cpp has it.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);
// Their names with commas between, for an error.
std::string GgufPreTokenizerNames();

}  // namespace quire::engine
