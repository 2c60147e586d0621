#pragma once

// The unigram language model of SentencePiece (arXiv:1804.10959): the split of a word whose tokens
// have the largest sum of log probabilities.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer/byte_trie.h"
#include "text/tokenizer/word_model.h"

namespace quire::text {

struct UnigramModelConfig {
  int32_t unknown_id = -1;     // for a character without a token; -1: it is dropped
  bool byte_fallback = false;  // an unknown character becomes its bytes' tokens, if all exist
};

// As in Hugging Face: sums in float64; among equal sums the split whose last token begins first; an
// unknown character costs 10 more than the worst token, and neighbouring unknown ones become one
// token. EncodeWord: O(bytes of the word times bytes of the longest token).
class UnigramModel final : public WordModel {
 public:
  struct Piece {
    std::string_view text;  // copied; "": never found
    double score = 0.0;     // log probability, finite
  };
  // Piece i is token i. Among equal texts the last is found.
  UnigramModel(const UnigramModelConfig& config, const std::vector<Piece>& pieces);

  void EncodeWord(std::string_view word, std::vector<WordToken>& out) const override;
  bool covers_all() const override;

 private:
  // The best split of a word's bytes up to one position: its score, and where its last token begins
  // and that token's id.
  struct Best {
    double score = 0.0;
    uint32_t begin = kNoBegin;
    int32_t id = -1;
  };
  static constexpr uint32_t kNoBegin = UINT32_MAX;

  // False if interrupted; `best` is then incomplete.
  bool FindBest(std::string_view word, std::vector<Best>& best) const;
  void EmitUnknown(std::string_view word, uint32_t begin, uint32_t end,
                   std::vector<WordToken>& out) const;

  const UnigramModelConfig config_;
  const ByteTrie trie_;
  std::vector<double> scores_;  // by id
  std::array<int32_t, 256> byte_tokens_{};
  double unknown_score_ = 0.0;
};

}  // namespace quire::text
