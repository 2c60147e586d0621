#pragma once

// Splits a text into the words that the model sees one by one.

#include <deque>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/tokenizer/aligned_text.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/regex.h"

namespace quire::engine {

// What becomes of the matches of a split (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// What a text was split into. The words borrow from the text and from `rewritten`.
struct SplitText {
  std::vector<TextPart> words;
  std::deque<AlignedText> rewritten;  // a deque: what is in it never moves
};

// A list of splits and edits; each looks at the words of the one before, and sees nothing around
// them. Immutable once filled; thread-safe.
class PreTokenizer {
 public:
  void AddSplit(Regex pattern, SplitBehavior behavior, bool invert);
  // Rewrites each word: a prefix space, "▁" for " ".
  void AddEdit(Normalizer edit) { steps_.emplace_back(std::move(edit)); }
  // From here on the patterns see GPT-2's byte alphabet instead of the text: what Hugging Face does
  // after its ByteLevel step. The words are still bytes of the text.
  void AddByteAlphabet() { byte_alphabet_ = true; }

  // Whether the words hold every byte of the text.
  bool keeps_all() const;

  // Words are never empty and in order. Without a kRemoved split or an edit they cover the whole
  // text, also where a pattern gives up. `part` must be valid UTF-8.
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

// GPT-2's own pattern, which the ByteLevel step means.
std::string_view Gpt2Pattern();

}  // namespace quire::engine
