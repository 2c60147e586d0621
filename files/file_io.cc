#include "files/file_io.h"

#include <cerrno>
#include <unistd.h>

namespace quire::files {

bool ReadAt(int file, int64_t place, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(file, bytes.data(), bytes.size(), place);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) {
      errno = 0;
      return false;
    }
    bytes = bytes.subspan(static_cast<size_t>(got));
    place += got;
  }
  return true;
}

bool WriteAt(int file, int64_t place, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file, bytes.data(), bytes.size(), place);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(put));
    place += put;
  }
  return true;
}

}  // namespace quire::files
