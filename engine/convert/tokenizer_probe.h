#pragma once

// Whether two tokenizers of one vocabulary make the same tokens of a text, found out by trying.

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace quire::engine {

struct TokenizerProbeOptions {
  std::vector<bool> left_out;      // by id: tokens that no text is made of
  std::bitset<256> missing_bytes;  // texts with one of these are left out
  bool nfc = false;                // the texts are in NFC: what that normalizer leaves alone
  bool leading_space = true;       // texts may begin with a space
};

struct TokenizerDifference {
  size_t text_index = 0;  // among the probe's texts; those hard to split come first
  std::string text;
  std::vector<int32_t> want;
  std::vector<int32_t> got;
};
// "\"text\": want 1 2, got 1 3"; long ones are cut off.
std::string Describe(const TokenizerDifference& difference);

// Ids of `text`, without the special tokens that are added.
std::vector<int32_t> PlainIds(const Tokenizer& tokenizer, std::string_view text,
                              bool parse_special_tokens);

// The texts: some that are hard to split into words, then each token of the vocabulary alone, then
// all of them again, several together in another order. Special tokens are plain text.
// Immutable. Time and memory are linear in the vocabulary.
class TokenizerProbe {
 public:
  TokenizerProbe(const Tokenizer& wanted, const TokenizerProbeOptions& options);

  // The first text of which `other` makes other tokens; nothing: there is none.
  std::optional<TokenizerDifference> FirstDifference(const Tokenizer& other) const;

 private:
  void Add(std::string text, const Tokenizer& wanted, const TokenizerProbeOptions& options);
  void AddVocabulary(const Tokenizer& wanted, const TokenizerProbeOptions& options);

  struct Probe {
    std::string text;
    std::vector<int32_t> ids;
  };
  std::vector<Probe> probes_;
};

}  // namespace quire::engine
