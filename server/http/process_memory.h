#pragma once

#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"

namespace quire::server {

// Returns this process's resident memory in bytes, or 0 if /proc does not show it.
int64_t ResidentMemoryBytes();

// Returns free heap memory to the system. A thread checks every few seconds, and calls malloc_trim
// when more than 16 MiB are free. Without this, the memory that is freed after a burst of requests
// would stay in the glibc arenas of the threads that allocated it.
class FreeMemoryReturner {
 public:
  FreeMemoryReturner();
  ~FreeMemoryReturner();  // joins
  FreeMemoryReturner(const FreeMemoryReturner&) = delete;
  FreeMemoryReturner& operator=(const FreeMemoryReturner&) = delete;

 private:
  void Run();

  base::Mutex mu_;
  base::CondVar ended_changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // declared last, because it uses the other members
};

}  // namespace quire::server
