#pragma once

// Turns token ids into text, one id at a time. Never returns a part of a UTF-8 character.

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace quire::text {

// The detokenizer of one output. All results of Push() and the result of Flush(), joined, equal
// Tokenizer::Decode of the ids, with one exception: a leading space is kept, because the output
// follows a prompt.
class IncrementalDetokenizer {
 public:
  // `pending` holds the first bytes of an unfinished character, which the pushed ids complete.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         std::string pending = "");

  // Returns the text of a token that Push() leaves out: of a special token, if these are skipped.
  std::string_view HiddenBytes(int32_t id) const;
  // Adds a token. Returns the new text up to its last complete character. The result may be empty.
  std::string Push(int32_t id);
  // Returns the rest of the text: U+FFFD if a character is incomplete, else nothing.
  std::string Flush();
  // Returns the bytes of an incomplete character, unchanged.
  const std::string& pending() const { return pending_; }

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_tokens_;
  std::string pending_;  // bytes of an unfinished character
};

}  // namespace quire::text
