#pragma once

// Counts of sessions and their turns.

#include <array>
#include <cstdint>

namespace quire::engine {

// The ways in which a turn of a session ends.
enum class TurnResult : uint8_t { kOk, kCancelled, kFailed };

struct SessionCounts {
  int64_t num_open = 0;
  std::array<int64_t, 3> turns{};  // by TurnResult, since the start; appends are no turns
};

}  // namespace quire::engine
