#pragma once

// A socket of this process that another component owns now.

#include <sys/stat.h>

namespace quire::server::door {

// Shows whether the new owner has closed the socket. A shutdown of the socket does not count as a
// close. (The other end of the connection cannot tell a shutdown from a close.)
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
    struct stat now;  // fd_ may be the number of another file by now
    return fd_ >= 0 && ::fstat(fd_, &now) == 0 && now.st_ino == inode_ && now.st_dev == device_;
  }

 private:
  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace quire::server::door
