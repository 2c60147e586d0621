#include "tests/engine/disk/faulty_disk.h"

#include <cerrno>
#include <chrono>
#include <thread>
#include <unistd.h>

#include <sys/syscall.h>

namespace quire::testing {
namespace {

void WaitWhile(const std::atomic<bool>& hangs) {
  if (!hangs) return;
  ++Disk().num_hanging;
  while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --Disk().num_hanging;
}

}  // namespace

FaultyDisk& Disk() {
  static FaultyDisk disk;
  return disk;
}

}  // namespace quire::testing

extern "C" ssize_t pread(int fd, void* bytes, size_t size, off_t place) {
  quire::testing::WaitWhile(quire::testing::Disk().reads_hang);
  if (quire::testing::Disk().on_read) quire::testing::Disk().on_read();
  if (const int error = quire::testing::Disk().read_error; error != 0) {
    errno = error;
    return -1;
  }
  return ::syscall(SYS_pread64, fd, bytes, size, place);
}

extern "C" ssize_t pwrite(int fd, const void* bytes, size_t size, off_t place) {
  quire::testing::WaitWhile(quire::testing::Disk().writes_hang);
  if (const int error = quire::testing::Disk().write_error; error != 0) {
    errno = error;
    return -1;
  }
  return ::syscall(SYS_pwrite64, fd, bytes, size, place);
}

extern "C" int fsync(int) { return 0; }

extern "C" int fdatasync(int) {
  if (const int error = quire::testing::Disk().sync_error; error != 0) {
    errno = error;
    return -1;
  }
  return 0;
}
