#pragma once

// What a request keeps in the cache when it is to go on for ever.

#include <cstdint>

namespace quire::engine {

// Attention sinks (StreamingLLM, arXiv:2309.17453): the first tokens stay, and behind them the last
// ones. A token's position, for the model, is where it stands in the cache:
//
//   index   0 ..                  capacity                   capacity + drop
//   cache   [sinks][...window...]
//                                 [sinks][window, drop fewer][new ...
//
// Where the cache would hold more than `capacity` tokens, the first `drop` behind the sinks go at
// once, and those behind these move up by as many positions: a shift. So a position is a pure
// function of the index, and who computes the sequence again comes to the same bits.
//
// All are multiples of the block size.
struct CacheWindow {
  int64_t sinks = 0;
  int64_t window = 0;  // tokens behind the sinks, at most; 0: no window, nothing goes
  int64_t drop = 0;

  // For so many tokens each at least, in whole blocks. `window_tokens` is at least two blocks.
  static CacheWindow Of(int64_t sink_tokens, int64_t window_tokens, int32_t block_size);

  bool on() const { return window > 0; }
  int64_t capacity() const { return sinks + window; }

  // How often the cache has been shifted when the token at `index` is computed.
  int64_t NumShifts(int64_t index) const {
    return !on() || index < capacity() ? 0 : (index - capacity()) / drop + 1;
  }
  // Where it stands then.
  int64_t Position(int64_t index) const { return index - NumShifts(index) * drop; }
  // The first index behind it that wants another shift; none without a window.
  int64_t NextShift(int64_t index) const { return capacity() + NumShifts(index) * drop; }
  // Tokens, whole blocks, that one sequence may hold at most. While the cache is shifted, those
  // that stay may be there twice: a shared block is not written.
  int64_t MostHeld() const { return capacity() + window; }
};

}  // namespace quire::engine
