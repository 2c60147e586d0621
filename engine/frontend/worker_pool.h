#pragma once

// A few threads and a bounded queue of work for them.

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"

#include "base/mutex.h"

namespace quire::engine {

class WorkerPool {
 public:
  WorkerPool(int32_t num_threads, int32_t max_queue);
  // Runs what is queued, then joins.
  ~WorkerPool();

  // ResourceExhausted, at once, when the queue is full. Thread-safe.
  absl::Status Submit(std::function<void()> work);

 private:
  void Run();

  const size_t max_queue_;
  base::Mutex mu_;
  base::CondVar work_available_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::engine
