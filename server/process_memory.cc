#include "server/process_memory.h"

#include <fstream>
#include <unistd.h>

namespace quire::server {

int64_t ResidentMemoryBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return statm ? resident_pages * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace quire::server
