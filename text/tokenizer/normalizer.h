#pragma once

// Changes a text before it is split into words: replacements, prefixes, Unicode forms.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/regex.h"

namespace quire::text {

// A list of steps, applied in order. Immutable once filled; thread-safe.
class Normalizer {
 public:
  void AddPrepend(std::string prefix);
  // Prepends `prefix` unless the text begins with it. With `only_at_input_start`, prepends only to
  // text at the start of the input.
  void AddPrependUnlessThere(std::string prefix, bool only_at_input_start);
  void AddReplace(std::string from, std::string to);
  void AddReplace(Regex from, std::string to);
  // A step of any other kind: a thread-safe function that returns the new text, or nothing when the
  // text does not change.
  using Step = std::function<absl::StatusOr<std::optional<AlignedText>>(const TextPart&)>;
  void Add(Step step, int64_t max_shrink = 0);

  bool empty() const { return steps_.empty(); }
  // Returns the most input bytes that one byte of normalized text can stand for; 0 if no bound is
  // known.
  int64_t max_shrink() const { return max_shrink_; }
  // Returns the normalized text, or nothing when no step changes the text. Returns InvalidArgument
  // if a pattern gives up (Regex::Find).
  absl::StatusOr<std::optional<AlignedText>> Apply(const TextPart& part) const;

 private:
  std::vector<Step> steps_;
  int64_t max_shrink_ = 1;
};

}  // namespace quire::text
