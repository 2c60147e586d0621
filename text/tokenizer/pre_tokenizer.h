#pragma once

// Splits a text into words, which the model encodes one by one.

#include <deque>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/regex.h"

namespace quire::text {

// The handling of a split's matches (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// The words of a text. They point into the text and into `rewritten`.
struct SplitText {
  std::vector<TextPart> words;
  std::deque<AlignedText> rewritten;  // a deque: its elements never move
};

// A list of splits and edits. Each step processes the words of the step before, one word at a time.
// Immutable once filled; thread-safe.
class PreTokenizer {
 public:
  void AddSplit(Regex pattern, SplitBehavior behavior, bool invert);
  // Rewrites each word: a prefix space, "▁" for " ".
  void AddEdit(Normalizer edit) { steps_.emplace_back(std::move(edit)); }
  // From here on the patterns see GPT-2's byte alphabet instead of the text, as in Hugging Face
  // after its ByteLevel step. The words are still bytes of the text.
  void AddByteAlphabet() { byte_alphabet_ = true; }

  // True if the words hold every byte of the text.
  bool keeps_all() const;

  // Words are in order and never empty. Without a kRemoved split or an edit they cover the whole
  // text, even if a pattern gives up. `part` must be valid UTF-8.
  void Split(const TextPart& part, SplitText& out) const;

 private:
  struct PatternSplit {
    Regex pattern;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    bool in_byte_alphabet = false;
  };
  static void SplitWord(const PatternSplit& split, const TextPart& word,
                        std::vector<TextPart>& out);

  std::vector<std::variant<PatternSplit, Normalizer>> steps_;
  bool byte_alphabet_ = false;
};

// GPT-2's own pattern, which the ByteLevel step uses.
std::string_view Gpt2Pattern();

}  // namespace quire::text
