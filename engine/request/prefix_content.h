#pragma once

// The content of a named prefix, for the requests that run on it.

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "text/chat_message.h"

namespace quire::engine {

// Requests share the content, so that the end of the prefix takes nothing from those that run on
// it. Constant after construction, except for the counts of its use.
struct PrefixContent {
  uint64_t pin = 0;          // of its blocks, while the prefix is there; never used twice
  std::string tenant;        // the owner
  std::vector<int32_t> ids;  // never empty
  // As the owner gave it.
  std::variant<std::string, std::vector<int32_t>, std::vector<text::ChatMessage>> given;

  // Written by the step thread, read by any.
  static constexpr int64_t kNoHit = std::numeric_limits<int64_t>::min();
  struct Use {
    std::atomic<int64_t> last_hit_ns = kNoHit;  // by the engine's clock
    std::atomic<uint64_t> hits = 0;
    std::atomic<uint64_t> saved_tokens = 0;  // not computed, since the prefix has them
  };
  mutable Use use;
};

}  // namespace quire::engine
