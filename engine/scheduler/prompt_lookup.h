#pragma once

// Guesses the next tokens of a sequence from its own earlier tokens.

#include <cstdint>
#include <span>
#include <vector>

namespace quire::engine {

// Implements prompt lookup, a form of speculative decoding (arXiv:2211.17192) without a second
// model (arXiv:2304.04487). Text that repeats itself, such as an answer that quotes its prompt, is
// likely to go on as it did before.
class PromptLookup {
 public:
  // The number of last tokens that must have occurred before.
  static constexpr int64_t kMatched = 3;

  // Finds the latest earlier occurrence of the last kMatched tokens and appends the `most` tokens
  // that followed it to `drafts`. If fewer tokens follow it, the first drafted tokens count as
  // following, too, so a loop goes on as a loop. Returns the number of tokens appended: `most`, or
  // 0 if there is no occurrence, or while the first calls still read a long prompt. `tokens` must
  // begin with the tokens of the last call.
  int32_t Draft(std::span<const int32_t> tokens, int32_t most, std::vector<int32_t>& drafts);

 private:
  void Index(std::span<const int32_t> tokens, int64_t end);
  // Returns the place in table_ of the kMatched tokens before `end`. If table_ lacks them, returns
  // the place to put them, which is free or holds other tokens.
  size_t PlaceOf(std::span<const int32_t> tokens, int64_t end) const;

  // A hash table by the values of kMatched tokens: the index after their latest occurrence, or 0.
  // At most half of the places are used, so that a search soon ends. Tokens that find no free place
  // nearby take that of others, which are then forgotten.
  std::vector<int32_t> table_;
  int64_t indexed_ = kMatched - 1;  // table_ has the tokens before each index up to this one
};

}  // namespace quire::engine
