#pragma once

#include <cstdint>

namespace quire::server {

// Bytes of this process that are in RAM; 0 where /proc does not tell.
int64_t ResidentMemoryBytes();

}  // namespace quire::server
