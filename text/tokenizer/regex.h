#pragma once

// Pre-tokenizer patterns, run by PCRE2 with Unicode properties and its JIT.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quire::text {

// Patterns are written for Oniguruma (Hugging Face) or for llama.cpp. A construct that PCRE2 reads
// differently (\s, \w, ^ and $, a class inside a class) is translated to keep its meaning. A
// construct without an equivalent, such as set intersection "[a&&b]", is refused.
//
// Immutable; thread-safe. A search may take steps and memory in proportion to its text.
class Regex {
 public:
  // Compiles `pattern`. If this fails, returns an InvalidArgument error that names the pattern and
  // what is wrong with it.
  static absl::StatusOr<Regex> Create(std::string_view pattern);
  // Returns a pattern that matches exactly `text`.
  static std::string Quote(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };
  // Returns the first match at or after `from`, or nothing if there is none. `text` must be valid
  // UTF-8, and `from` must be the start of a character. Returns InvalidArgument if the search takes
  // more steps or memory than it may. Then nothing is known about the text, which must be refused.
  absl::StatusOr<std::optional<Match>> Find(std::string_view text, size_t from) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace quire::text
