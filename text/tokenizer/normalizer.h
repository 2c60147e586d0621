#pragma once

// The changes to a text before it is split: replacements, prefixes, Unicode forms.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/regex.h"

namespace quire::text {

// A list of steps, applied in order. Immutable once filled; thread-safe. Linear in the text.
class Normalizer {
 public:
  void AddPrepend(std::string prefix);
  // Prepends unless the text begins with `prefix`; with `only_at_input_start`, only at the input's
  // start.
  void AddPrependUnlessThere(std::string prefix, bool only_at_input_start);
  void AddReplace(std::string from, std::string to);
  void AddReplace(Regex from, std::string to);
  // Any other step: returns the new text, or nothing when it changes nothing. Thread-safe.
  using Step = std::function<std::optional<AlignedText>(const TextPart&)>;
  void Add(Step step, int64_t max_shrink = 0);

  bool empty() const { return steps_.empty(); }
  // The most bytes of a text that become one byte of its normal form; 0: no bound is known.
  int64_t max_shrink() const { return max_shrink_; }
  // Nothing when no step changes the text: the part itself is its normal form.
  std::optional<AlignedText> Apply(const TextPart& part) const;

 private:
  std::vector<Step> steps_;
  int64_t max_shrink_ = 1;
};

}  // namespace quire::text
