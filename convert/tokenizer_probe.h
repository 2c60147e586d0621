#pragma once

// Finds out, by trying texts, if two tokenizers of one vocabulary give the same tokens.

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
  bool nfc = false;                // only texts in NFC, which that normalizer does not change
  bool leading_space = true;       // texts may begin with a space
};

struct TokenizerDifference {
  size_t text_index = 0;  // among the probe's texts; the hard ones come first
  std::string text;
  std::vector<int32_t> want;
  std::vector<int32_t> got;
};
// "\"text\": want 1 2, got 1 3"; long texts are cut off.
std::string Describe(const TokenizerDifference& difference);

// Ids of `text`, without added special tokens.
std::vector<int32_t> PlainIds(const text::Tokenizer& tokenizer, std::string_view text,
                              bool parse_special_tokens);

// Compares tokenizers on texts: first some that are hard to split into words, then each token of
// the vocabulary alone, then all tokens again, several together in another order. Special tokens
// are plain text.
// Immutable. Time and memory are linear in the vocabulary.
class TokenizerProbe {
 public:
  TokenizerProbe(const text::Tokenizer& wanted, const TokenizerProbeOptions& options);

  // The first text for which `other` gives other tokens; nothing if there is none.
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
