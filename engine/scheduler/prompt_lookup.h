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
  // after it to `drafts`. If fewer tokens follow it, goes on with the first drafted tokens, so that
  // a loop repeats. Returns `most`. Returns 0 and appends nothing if there is no occurrence, or
  // while a long prompt is not fully indexed. `tokens` must begin with the tokens of the last call.
  int32_t Draft(std::span<const int32_t> tokens, int32_t most, std::vector<int32_t>& drafts);

 private:
  void Index(std::span<const int32_t> tokens, int64_t end);
  // Returns the place in table_ of the kMatched tokens before `end`. If table_ lacks them, returns
  // the place to put them, which is free or holds other tokens.
  size_t PlaceOf(std::span<const int32_t> tokens, int64_t end) const;

  // A hash table from kMatched tokens to the index after their latest occurrence; 0: a free place.
  // At most half of the places are used, so searches are short. Tokens that find no free place
  // nearby replace others, which are then forgotten.
  std::vector<int32_t> table_;
  int64_t indexed_ = kMatched - 1;  // table_ has the tokens before each index up to this one
};

}  // namespace quire::engine
