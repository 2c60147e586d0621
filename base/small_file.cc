#include "base/small_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <sys/stat.h>

#include "absl/strings/str_format.h"

namespace quire::base {

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const auto cannot_read = [&] {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: cannot read: %s", path, std::strerror(errno)));
  };
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return cannot_read();
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: want a regular file, got a %s", path,
                        S_ISDIR(status.st_mode) ? "directory" : "pipe, a socket or a device"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return cannot_read();
  std::string text;
  char buffer[1 << 12];
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
    if (text.size() > kMaxSmallFile) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: want at most %d bytes, got more", path, kMaxSmallFile));
    }
  }
  if (file.bad()) return cannot_read();
  return text;
}

}  // namespace quire::base
