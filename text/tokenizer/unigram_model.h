#pragma once

// The unigram language model of SentencePiece (arXiv:1804.10959). It splits a word into the tokens
// that have the largest sum of log probabilities.

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
  int32_t unknown_id = -1;     // for a character without a token; -1: the character is dropped
  bool byte_fallback = false;  // an unknown character becomes the tokens of its bytes, if all exist
};

// Splits a word as Hugging Face does. Sums are float64. Among splits with equal sums, the split
// with the longest last token is chosen. The score of an unknown character is 10 below the score of
// the worst token. Neighbouring unknown characters become one token. EncodeWord takes O(bytes of
// the word times bytes of the longest token).
class UnigramModel final : public WordModel {
 public:
  struct Piece {
    std::string_view text;  // copied; an empty text is never found
    double score = 0.0;     // log probability, finite
  };
  // Piece i is token i. If several pieces have the same text, only the last is found.
  UnigramModel(const UnigramModelConfig& config, const std::vector<Piece>& pieces);

  void EncodeWord(std::string_view word, std::vector<WordToken>& out) const override;
  bool covers_all() const override;

 private:
  // The best split of a word up to one byte position: the score of the split, and the start and id
  // of its last token.
  struct Best {
    double score = 0.0;
    uint32_t begin = kNoBegin;
    int32_t id = -1;
  };
  static constexpr uint32_t kNoBegin = UINT32_MAX;

  // Returns false if interrupted; `best` is then incomplete.
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
