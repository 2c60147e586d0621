#pragma once

// A socket of this process that another component owns now.

#include <sys/stat.h>

namespace quire::server::door {

// Knows when the owner has closed it. A shutdown, which the other end of a connection cannot tell
// from a close, does not count.
class LentSocket {
 public:
  LentSocket() = default;
  explicit LentSocket(int fd) : fd_(fd) {
    if (::fstat(fd, &identity_) != 0) fd_ = -1;
  }

  bool is_open() const {
    struct stat now;  // another file may have its number by now
    return fd_ >= 0 && ::fstat(fd_, &now) == 0 && now.st_ino == identity_.st_ino &&
           now.st_dev == identity_.st_dev;
  }

 private:
  int fd_ = -1;
  struct stat identity_ {};
};

}  // namespace quire::server::door
