#pragma once

// The part of its context that an unbounded request keeps in the cache.

#include <cstdint>

namespace quire::engine {

// Attention sinks (StreamingLLM, arXiv:2309.17453): the first tokens stay, followed by the last
// ones. A token's position, for the model, is its place in the cache:
//
//   index   0 ..                  capacity                   capacity + drop
//   cache   [sinks][...window...]
//                                 [sinks][window, drop fewer][new ...
//
// When the cache would hold more than `capacity` tokens, the first `drop` tokens after the sinks
// are removed at once, and all later tokens move up by `drop` positions: a shift. So a position is
// a pure function of the index, and computing the sequence again gives the same bits.
//
// All three are multiples of the block size.
struct CacheWindow {
  int64_t sinks = 0;
  int64_t window = 0;  // the most tokens after the sinks; 0: no window, all tokens stay
  int64_t drop = 0;

  // Rounds both up to whole blocks. `window_tokens` is more than one block.
  static CacheWindow Of(int64_t sink_tokens, int64_t window_tokens, int32_t block_size);

  bool on() const { return window > 0; }
  int64_t capacity() const { return sinks + window; }

  // The number of shifts before the token at `index` is computed.
  int64_t NumShifts(int64_t index) const {
    return !on() || index < capacity() ? 0 : (index - capacity()) / drop + 1;
  }
  // The position at which it is computed.
  int64_t Position(int64_t index) const { return index - NumShifts(index) * drop; }
  // The first later index that needs another shift. Only with a window.
  int64_t NextShift(int64_t index) const { return capacity() + NumShifts(index) * drop; }
  // The most tokens, in whole blocks, that one sequence may hold. During a shift the tokens that
  // stay may be there twice, since a shared block is copied instead of written.
  int64_t MostHeld() const { return capacity() + window; }
};

}  // namespace quire::engine
