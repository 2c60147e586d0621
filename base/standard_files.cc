#include "base/standard_files.h"

#include <fcntl.h>
#include <unistd.h>

namespace quire::base {

void OpenStandardFiles() {
  // open(2) takes the lowest number that is free.
  int fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd >= 0) ::close(fd);
}

}  // namespace quire::base
