#pragma once

// What makes tokens of one word: bpe_model.h, unigram_model.h.

#include <cstdint>
#include <string_view>
#include <vector>

namespace quire::engine {

struct WordToken {
  int32_t id = 0;
  uint32_t begin = 0;  // bytes of the word
  uint32_t end = 0;
};

// Immutable once filled; thread-safe.
class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the tokens of `word`, in order. The word must be valid UTF-8 unless the model's units
  // are bytes.
  virtual void EncodeWord(std::string_view word, std::vector<WordToken>& out) const = 0;
  // Whether every byte of a word is in one of its tokens, which stand for no more than their text.
  virtual bool covers_all() const = 0;
};

}  // namespace quire::engine
