#pragma once

// The counts of what a server keeps of its KV cache on disk.

#include <cstdint>

namespace quire::engine {

// All but the bytes are numbers of blocks, since the start.
struct DiskStats {
  int64_t bytes = 0;    // of the files now
  int64_t hits = 0;     // blocks that came from disk
  int64_t misses = 0;   // blocks of prompts that were not there, or could not be used
  int64_t errors = 0;   // errors of the disk, and damaged blocks
  int64_t dropped = 0;  // blocks that were not written
};

}  // namespace quire::engine
