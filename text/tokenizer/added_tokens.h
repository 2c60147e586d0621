#pragma once

// Added tokens, such as "<|im_end|>", which are found verbatim in a text before the text is split
// into words.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer/aligned_text.h"

namespace quire::text {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;      // a control token: found only when special tokens are parsed
  bool normalized = false;   // searched in the normalized text
  bool single_word = false;  // found only if no letter or digit is next to it
  bool strip_left = false;   // the token includes white space before it
  bool strip_right = false;
  // Set by AddedTokens: a content must not be read as this token (EncodeOptions::contents).
  bool is_control = false;
};

// Finds added tokens in a text, from left to right. If several tokens begin at the same place, the
// longest is found. Immutable once filled; thread-safe. The time is O(bytes of the text times bytes
// of the longest token).
class AddedTokens {
 public:
  AddedTokens();
  // Adds a token. If two tokens have the same content, the first stays. A token with an empty
  // content is never found.
  void Add(AddedToken token);
  bool empty() const { return tokens_.empty(); }
  bool any_strips() const {
    return std::ranges::any_of(tokens_,
                               [](const AddedToken& t) { return t.strip_left || t.strip_right; });
  }

  struct Part {
    size_t begin = 0;  // bytes of the text
    size_t end = 0;
    int32_t id = -1;  // -1: plain text between tokens
  };
  // Splits `text` into `parts`, which cover the text in order and are never empty. Finds no control
  // token that has a byte of `contents`, which are ranges of the input (EncodeOptions::contents).
  void Split(const TextPart& text, bool parse_special, std::span<const ByteRange> contents,
             std::vector<Part>& parts) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  struct Node {
    int32_t token = -1;                                 // index in tokens_
    std::vector<std::pair<uint8_t, int32_t>> children;  // sorted by byte
  };
  int32_t Child(int32_t node, uint8_t byte) const;
  // Returns the longest token at `position`; null when there is none.
  const AddedToken* LongestAt(const TextPart& text, size_t position,
                              std::span<const ByteRange> contents) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;                // a trie; [0] is the root
  std::array<bool, 256> is_first_byte_{};  // skips most of a text with one look-up per byte
};

}  // namespace quire::text
