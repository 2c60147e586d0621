#include "engine/request/cache_window.h"

#include "base/check.h"
#include "base/math.h"

namespace quire::engine {
namespace {

// A shift removes 1 / kShiftsPerWindow of the window, rounded up to whole blocks. Each shift
// rotates and rounds every later key once. So a key is rounded at most four times before it is
// removed. About three quarters of the window always stay.
constexpr int64_t kShiftsPerWindow = 4;

using base::CeilDiv;

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
