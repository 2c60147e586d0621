#pragma once

// Pre-tokenizer patterns, run by PCRE2 with Unicode properties and its JIT.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quire::text {

// Patterns are written for Oniguruma (Hugging Face) or for llama.cpp. A construct that PCRE2 reads
// differently (\s, \w, ^ and $, a class inside a class) is translated to keep its meaning. A
// construct without an equivalent, such as set intersection "[a&&b]", is refused.
//
// Immutable; thread-safe. PCRE2's match limits apply.
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
  enum class Outcome { kMatch, kNoMatch, kGaveUp };
  // Finds the first match at or after `from`. `text` must be valid UTF-8, and `from` must be the
  // start of a character. kGaveUp means that PCRE2 failed, for example at its match limit. The
  // caller then keeps the rest of the text unsplit.
  Outcome Find(std::string_view text, size_t from, Match& match) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace quire::text
