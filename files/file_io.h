#pragma once

// Reads and writes whole pieces of open files.

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire::files {

// Fills `bytes` from the file's byte `place` on. Returns false with errno set, or with errno 0 if
// the file is too short.
bool ReadAt(int file, int64_t place, std::span<std::byte> bytes);

// Returns false with errno set. A part of the bytes may be written then.
bool WriteAt(int file, int64_t place, std::span<const std::byte> bytes);

}  // namespace quire::files
