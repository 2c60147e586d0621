#pragma once

// Splits a text into the words that BPE merges within.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/regex.h"

namespace quire::engine {

// What becomes of the matches of a split (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Bytes of a text, half open.
struct Word {
  size_t begin = 0;
  size_t end = 0;
};

// A list of splits; each looks at the words of the one before, and sees nothing around them.
// Immutable once filled; thread-safe.
class PreTokenizer {
 public:
  void AddSplit(Regex pattern, SplitBehavior behavior, bool invert);
  // From here on the patterns see GPT-2's byte alphabet instead of the text: what Hugging Face does
  // after its ByteLevel step. The words are still bytes of the text.
  void AddByteAlphabet();

  // Words are never empty and in order. Without a kRemoved split they cover the whole text, also
  // where a pattern gives up. `text` must be valid UTF-8.
  void Split(std::string_view text, std::vector<Word>& words) const;

 private:
  struct Step {
    Regex pattern;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    bool in_byte_alphabet = false;
  };
  static void SplitWord(const Step& step, std::string_view text, Word word, std::vector<Word>& out);

  std::vector<Step> steps_;
  bool byte_alphabet_ = false;
};

// GPT-2's own pattern, which the ByteLevel step means.
std::string_view Gpt2Pattern();

}  // namespace quire::engine
