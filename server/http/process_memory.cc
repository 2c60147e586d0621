#include "server/http/process_memory.h"

#include <chrono>
#include <fstream>
#include <malloc.h>
#include <unistd.h>

namespace quire::server {
namespace {

constexpr std::chrono::seconds kReturnEvery(5);
constexpr size_t kWorthReturning = size_t{16} << 20;

}  // namespace

int64_t ResidentMemoryBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return statm ? resident_pages * ::sysconf(_SC_PAGESIZE) : 0;
}

FreeMemoryReturner::FreeMemoryReturner() : thread_([this] { Run(); }) {}

FreeMemoryReturner::~FreeMemoryReturner() {
  {
    base::MutexLock lock(mu_);
    ended_ = true;
    ended_changed_.NotifyAll();
  }
  thread_.join();
}

void FreeMemoryReturner::Run() {
  base::MutexLock lock(mu_);
  while (!ended_) {
    ended_changed_.WaitFor(mu_, kReturnEvery);
    if (!ended_ && ::mallinfo2().fordblks > kWorthReturning) ::malloc_trim(0);
  }
}

}  // namespace quire::server
