#pragma once

// The interface of models that split one word into tokens: bpe_model.h, unigram_model.h.

#include <cstdint>
#include <string_view>
#include <vector>

namespace quire::text {

struct WordToken {
  int32_t id = 0;
  uint32_t begin = 0;  // bytes of the word
  uint32_t end = 0;
};

// Immutable once filled; thread-safe.
class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the tokens of `word`, in order. The word must be valid UTF-8 unless the units of the
  // model are bytes.
  virtual void EncodeWord(std::string_view word, std::vector<WordToken>& out) const = 0;
  // True if the tokens of a word cover all bytes of the word, and no token covers more bytes than
  // its own text has.
  virtual bool covers_all() const = 0;
};

}  // namespace quire::text
