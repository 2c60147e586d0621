#pragma once

// A socket of this process that another component owns now.

#include <sys/stat.h>

namespace quire::server::door {

// Knows when the owner has closed it. A shutdown, which the other end of a connection cannot tell
// from a close, does not count.
class LentSocket {
 public:
  LentSocket() = default;
  explicit LentSocket(int fd) {
    struct stat now;
    if (::fstat(fd, &now) != 0) return;
    fd_ = fd;
    device_ = now.st_dev;
    inode_ = now.st_ino;
  }

  bool is_open() const {
    struct stat now;  // another file may have its number by now
    return fd_ >= 0 && ::fstat(fd_, &now) == 0 && now.st_ino == inode_ && now.st_dev == device_;
  }

 private:
  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace quire::server::door
