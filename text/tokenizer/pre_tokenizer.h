#pragma once

// Splits a text into words, which the model encodes one by one.

#include <deque>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"

#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/regex.h"

namespace quire::text {

// The way in which a split treats the matches of its pattern (Hugging Face's
// SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// The words of a text. The words point into the text and into `rewritten`.
struct SplitText {
  std::vector<TextPart> words;
  std::deque<AlignedText> rewritten;  // a deque, so that elements never move
};

// A list of steps, each a split or an edit. A step processes the words that the previous step made,
// one word at a time. Immutable once filled; thread-safe.
class PreTokenizer {
 public:
  void AddSplit(Regex pattern, SplitBehavior behavior, bool invert);
  // Adds a step that rewrites each word. It may prepend a space, or replace " " by "▁".
  void AddEdit(Normalizer edit) { steps_.emplace_back(std::move(edit)); }
  // Patterns added after this call see the text in GPT-2's byte alphabet, as in Hugging Face after
  // the ByteLevel step. The resulting words are still bytes of the text.
  void AddByteAlphabet() { byte_alphabet_ = true; }

  // True if the words hold every byte of the text.
  bool keeps_all() const;

  // Splits `part` into words, which are in order and never empty. If no step is a kRemoved split or
  // an edit, the words cover the whole text. `part` must be valid UTF-8. Returns InvalidArgument if
  // a pattern gives up (Regex::Find); `out` is then unfinished.
  absl::Status Split(const TextPart& part, SplitText& out) const;

 private:
  struct PatternSplit {
    Regex pattern;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    bool in_byte_alphabet = false;
  };
  static absl::Status SplitWord(const PatternSplit& split, const TextPart& word,
                                std::vector<TextPart>& out);

  std::vector<std::variant<PatternSplit, Normalizer>> steps_;
  bool byte_alphabet_ = false;
};

// Returns the pattern of GPT-2, which Hugging Face's ByteLevel step uses.
std::string_view Gpt2Pattern();

}  // namespace quire::text
