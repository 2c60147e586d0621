#pragma once

// How the wait of one sequence for tokens that another one computes may end.

#include <cstdint>

namespace quire::engine {

enum class FollowEnd : uint8_t {
  kServed,    // the tokens are there
  kReturned,  // the other sequence ended, was preempted or stalled before
  kEnded,     // the waiting sequence itself has ended
};

}  // namespace quire::engine
