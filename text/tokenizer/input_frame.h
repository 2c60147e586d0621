#pragma once

// The tokens that a model wants around its input. No other code adds any.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer/input_kind.h"

namespace quire::text {

struct EncodedToken {
  int32_t id = 0;
  // The range of input bytes that the token covers, half open; empty for an added BOS or EOS.
  int64_t begin = 0;
  int64_t end = 0;
};

// For example: a prefix of BOS and a suffix of EOS. An input that begins with the prefix gets no
// second one, and one that ends with the suffix no second suffix.
struct InputFrame {
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
  // True: a conversation gets the prefix, as in llama.cpp. False: its template alone writes special
  // tokens, as in Hugging Face.
  bool begins_chats = false;
  std::string prefix_text;  // the prefix as a text writes it; empty if no text can

  // Adds to `tokens`, which are those of an input of `num_bytes`.
  void Put(InputKind kind, int64_t num_bytes, std::vector<EncodedToken>& tokens) const;
  // Returns the text of a conversation, `rendered`, with the prefix that kChat would put before it
  // written out. The first `own_bytes` are the template's own, before any literal content.
  std::string BeginChat(std::string rendered, size_t own_bytes = std::string::npos) const;
  // Returns how many of the tokens that `ids` begins with are prefixes, of which an earlier version
  // may have put none or two.
  int64_t NumLeading(std::span<const int32_t> ids) const;
};

}  // namespace quire::text
