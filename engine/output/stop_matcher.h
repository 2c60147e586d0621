#pragma once

// Finds stop strings in a stream of text.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace quire::engine {

// The stop strings of a request, prepared once and shared by all its samples. Immutable.
class StopPatterns {
 public:
  // Each string has at least 1 byte. The order of the strings does not matter.
  explicit StopPatterns(std::vector<std::string> strings);

  bool empty() const { return strings_.empty(); }
  int32_t size() const { return static_cast<int32_t>(strings_.size()); }
  const std::string& string(int32_t index) const { return strings_[index]; }

  // Returns the number of bytes of string `index` that are matched after `byte`
  // (Knuth-Morris-Pratt). `matched` bytes, fewer than all, were matched before `byte`.
  int32_t Advance(int32_t index, int32_t matched, char byte) const;
  // Returns the number of bytes of string `index` that remain matched after the whole string was
  // matched.
  int32_t Border(int32_t index) const { return borders_[index].back(); }

 private:
  std::vector<std::string> strings_;
  // borders_[i][m] is the length of the longest proper prefix of the first m bytes of string i that
  // is also a suffix of these bytes.
  std::vector<std::vector<int32_t>> borders_;
};

// Holds back the end of the text while it could be the beginning of a stop string, and reports when
// a stop string is complete. Works byte by byte, so that the way in which the text is split changes
// nothing. The stop string whose last byte comes first stops the text. If several stop strings end
// at the same byte, the longest stops the text.
//
// Special tokens may be hidden: they are searched, but not released. A stop string is found in the
// text with the hidden bytes, and in the text without them, which goes first among strings as long.
class StopMatcher {
 public:
  // With `include_stop`, the whole stop string stays in the output, hidden bytes included;
  // otherwise all of it is removed.
  StopMatcher(std::shared_ptr<const StopPatterns> patterns, bool include_stop);

  // Takes more text and appends to `released` all text that can no longer be part of a stop string.
  // Returns the index of the string that stopped the text, or -1. A stop string that ends in text
  // pushed with `may_stop` false counts as plain text. Not called again after a stop.
  int32_t Push(std::string_view text, bool may_stop, std::string& released);
  // Takes the text of a hidden token. `unfinished` is the text that stands before it if the token
  // stops the text, and that otherwise comes later in another form: that of half a character.
  int32_t PushHidden(std::string_view unfinished, std::string_view token, bool may_stop,
                     std::string& released);

  // Ends the text and returns the bytes held back, which are no stop string.
  std::string Flush();

  // Returns the number of bytes held back.
  int64_t num_held() const { return static_cast<int64_t>(held_.size()); }

 private:
  // Pushes text as Push does, and releases nothing of the string that stops it.
  int32_t Feed(std::string_view text, bool is_shown, bool may_stop, std::string& released);
  // Advances each string of `matched`. Sets `ended` to the longest string that ends here. Returns
  // the number of bytes at the end of the text that could still become a stop string.
  int32_t Step(char byte, std::vector<int32_t>& matched, int32_t& ended) const;
  // Returns how many of the last `size` bytes are not hidden.
  int32_t NumShown(int32_t size) const;

  std::shared_ptr<const StopPatterns> patterns_;
  const bool include_stop_;
  // matched_[i] is the number of leading bytes of string i that the end of the text matches.
  std::vector<int32_t> matched_;
  std::string held_;  // the end of the text without hidden bytes, as far as it is held back

  // The rest has a meaning once a byte was hidden.
  bool hides_ = false;
  std::vector<int32_t> matched_shown_;  // matched_ of the text without hidden bytes
  std::vector<bool> is_shown_;  // by byte: the end of the text, as long as the largest of matched_
};

}  // namespace quire::engine
