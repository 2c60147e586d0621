#pragma once

// Finds stop strings in a stream of text.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace quire::engine {

// The strings of a request, prepared once and shared by its samples. Immutable.
class StopPatterns {
 public:
  // At least 1 byte each; their order does not matter.
  explicit StopPatterns(std::vector<std::string> strings);

  bool empty() const { return strings_.empty(); }
  int32_t size() const { return static_cast<int32_t>(strings_.size()); }
  const std::string& string(int32_t index) const { return strings_[index]; }

  // Knuth-Morris-Pratt: the number of bytes of string `index` matched after `byte`, when `matched`
  // bytes, fewer than all, were matched before it.
  int32_t Advance(int32_t index, int32_t matched, char byte) const;
  // The number of bytes of string `index` that remain matched after a match of the whole.
  int32_t Border(int32_t index) const { return borders_[index].back(); }

 private:
  std::vector<std::string> strings_;
  // borders_[i][m]: the longest proper prefix of the first m bytes that also ends them.
  std::vector<std::vector<int32_t>> borders_;
};

// Holds back the end of the text while it could be the beginning of a stop string, and reports when
// one is complete. Works byte by byte, so that the way in which the text is split changes nothing:
// the string whose last byte comes first stops it; among those that end there, the longest.
class StopMatcher {
 public:
  // Keeps the whole stop string in the output when `include_stop`, else nothing of it.
  StopMatcher(std::shared_ptr<const StopPatterns> patterns, bool include_stop);

  // Takes more text and appends to `released` all text that can no longer be part of a stop string.
  // Returns the index of the string that stopped it, or -1. A string that ends in text pushed with
  // `may_stop` false is plain text. Not called again after a stop.
  int32_t Push(std::string_view text, bool may_stop, std::string& released);

  // Ends the text and returns the bytes held back, which are no stop string.
  std::string Flush();

  // Bytes held back.
  int64_t num_held() const { return static_cast<int64_t>(held_.size()); }

 private:
  std::shared_ptr<const StopPatterns> patterns_;
  const bool include_stop_;
  std::vector<int32_t> matched_;  // bytes of each string that the text ends with
  std::string held_;              // the text's end, as long as the longest of matched_
};

}  // namespace quire::engine
