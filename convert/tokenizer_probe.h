#pragma once

// Finds out whether two tokenizers of one vocabulary give the same tokens, by encoding texts with
// both.

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace quire::convert {

struct TokenizerProbeOptions {
  std::vector<bool> left_out;      // by id: tokens that are not made into texts
  std::bitset<256> missing_bytes;  // texts with one of these bytes are left out
  bool nfc = false;                // texts are converted to NFC before they are encoded
  bool leading_space = true;       // false: texts that begin with a space get an "x" in front
};

struct TokenizerDifference {
  size_t text_index = 0;  // index among the texts of the probe; hard texts come first
  std::string text;
  std::vector<int32_t> want;
  std::vector<int32_t> got;
};
// Returns a description: "\"text\": want 1 2, got 1 3". Long texts are cut off.
std::string Describe(const TokenizerDifference& difference);

// Returns the ids of `text`, without added special tokens; none if the tokenizer cannot split it.
std::vector<int32_t> PlainIds(const text::Tokenizer& tokenizer, std::string_view text,
                              bool parse_special_tokens);

// Compares tokenizers on three groups of texts: texts that are hard to split into words, single
// tokens of the vocabulary, and texts of eight tokens that are far apart in the vocabulary. Special
// tokens are encoded as plain text. Immutable. Time and memory are linear in the vocabulary.
class TokenizerProbe {
 public:
  TokenizerProbe(const text::Tokenizer& wanted, const TokenizerProbeOptions& options);

  // Returns the first text for which `other` gives other tokens; nothing if there is none.
  std::optional<TokenizerDifference> FirstDifference(const text::Tokenizer& other) const;

 private:
  void Add(std::string text, const text::Tokenizer& wanted, const TokenizerProbeOptions& options);
  void AddVocabulary(const text::Tokenizer& wanted, const TokenizerProbeOptions& options);

  struct Probe {
    std::string text;
    std::vector<int32_t> ids;
  };
  std::vector<Probe> probes_;
};

}  // namespace quire::convert
