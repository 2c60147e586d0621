#include "engine/request/cache_window.h"

#include "base/check.h"

namespace quire::engine {
namespace {

// Of the window, what goes at once. A key is turned once a shift, so four times at most until it
// goes itself, each time with a rounding; and of the window three quarters are always there.
constexpr int64_t kShiftsPerWindow = 4;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

CacheWindow CacheWindow::Of(int64_t sink_tokens, int64_t window_tokens, int32_t block_size) {
  const int64_t blocks = CeilDiv(window_tokens, block_size);
  QUIRE_CHECK(sink_tokens >= 0 && blocks >= 2)
      << sink_tokens << " + " << window_tokens << " tokens in blocks of " << block_size;
  return {.sinks = CeilDiv(sink_tokens, block_size) * block_size,
          .window = blocks * block_size,
          .drop = CeilDiv(blocks, kShiftsPerWindow) * block_size};
}

}  // namespace quire::engine
