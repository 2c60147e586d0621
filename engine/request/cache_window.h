#pragma once

// The part of the context that a request of unbounded length keeps in the cache.

#include <cstdint>

namespace quire::engine {

// Implements attention sinks (StreamingLLM, arXiv:2309.17453). The cache keeps the first tokens of
// the context, the sinks, followed by the last tokens, the window. For the model, the position of a
// token is its place in the cache:
//
//   index   0 ..                  capacity                   capacity + drop
//   cache   [sinks][...window...]
//                                 [sinks][window, drop fewer][new ...
//
// When the cache would hold more than `capacity` tokens, the first `drop` tokens after the sinks
// are removed at once, and all later tokens move up by `drop` positions. This is a shift. The
// position of a token is a pure function of its index in the sequence. So computing the sequence
// again gives the same bits.
//
// All three members are multiples of the block size.
struct CacheWindow {
  int64_t sinks = 0;
  int64_t window = 0;  // the most tokens after the sinks; 0: no window, all tokens stay
  int64_t drop = 0;

  // Returns a window with both sizes rounded up to whole blocks. `window_tokens` must be more than
  // one block.
  static CacheWindow Of(int64_t sink_tokens, int64_t window_tokens, int32_t block_size);

  bool on() const { return window > 0; }
  int64_t capacity() const { return sinks + window; }

  // Returns the number of shifts before the token at `index` is computed.
  int64_t NumShifts(int64_t index) const {
    return !on() || index < capacity() ? 0 : (index - capacity()) / drop + 1;
  }
  // Returns the position at which the token at `index` is computed.
  int64_t Position(int64_t index) const { return index - NumShifts(index) * drop; }
  // Returns the first index after `index` that needs another shift. To be called only if on().
  int64_t NextShift(int64_t index) const { return capacity() + NumShifts(index) * drop; }
  // Returns the most tokens, in whole blocks, for which one sequence may need room. A shift copies
  // shared blocks instead of overwriting them, so the tokens of the window may exist twice.
  int64_t MostHeld() const { return capacity() + window; }
};

}  // namespace quire::engine
