#pragma once

// Turns token ids into text one by one, never half a UTF-8 character.

#include <cstdint>
#include <string>

#include "text/tokenizer/tokenizer.h"

namespace quire::text {

// One per output. The concatenation of all Push() results and Flush() equals Tokenizer::Decode of
// the ids, with `skip_special_tokens`, as a continuation: leading spaces are kept, since a prompt
// precedes.
class IncrementalDetokenizer {
 public:
  // `pending`: bytes of an unfinished character that the ids continue.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         std::string pending = "");

  // The text that became certain; empty while a character is incomplete.
  std::string Push(int32_t id);
  // The rest of the text: an incomplete character as U+FFFD.
  std::string Flush();
  // The bytes of an incomplete character, unchanged.
  const std::string& pending() const { return pending_; }

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_tokens_;
  std::string pending_;  // bytes of an unfinished character
};

}  // namespace quire::text
