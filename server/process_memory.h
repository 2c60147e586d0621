#pragma once

#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"

namespace quire::server {

// Bytes of this process that are in RAM; 0 where /proc does not tell.
int64_t ResidentMemoryBytes();

// Gives free memory back to the system, every few seconds and where there is much of it. glibc
// keeps what a storm of requests has freed in the arenas of the threads that took it, for good.
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
  std::thread thread_;  // last: it uses the others
};

}  // namespace quire::server
