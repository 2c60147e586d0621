#pragma once

// A few threads and a bounded queue of work for them. At most one thread does long work, so that
// short work never waits for two pieces of it. A pool of one thread cannot promise this.

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/heartbeat.h"
#include "base/mutex.h"

namespace quire::engine {

class WorkerPool {
 public:
  WorkerPool(int32_t num_threads, int32_t max_queue);
  // Runs all queued work, then joins.
  ~WorkerPool();

  // Runs the next work on the caller's thread; false when none can start. For a pool without
  // threads.
  bool RunOne();

  enum class Lane { kShort, kLong };

  // ResourceExhausted, at once, when the queue is full. Work of one lane starts in order.
  // Thread-safe.
  absl::Status Submit(Lane lane, std::function<void()> work);

  // The longest time that any thread has spent on its present piece of work.
  absl::Duration longest_busy() const;

 private:
  struct Work {
    Lane lane = Lane::kShort;
    std::function<void()> run;  // empty: no more work, the pool ends
  };

  void Run(base::Heartbeat& heartbeat);
  void RunWork(Work work);
  Work TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // empty: nothing can start
  // The queue to take from next; null while there is nothing to start.
  std::deque<std::function<void()>>* NextQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t max_queue_;
  base::Mutex mu_;
  base::CondVar work_available_;
  std::deque<std::function<void()>> short_ ABSL_GUARDED_BY(mu_);
  std::deque<std::function<void()>> long_ ABSL_GUARDED_BY(mu_);
  bool long_runs_ ABSL_GUARDED_BY(mu_) = false;
  bool last_was_long_ ABSL_GUARDED_BY(mu_) = false;  // of the work taken last
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<base::Heartbeat> heartbeats_;  // of each thread
  std::vector<std::thread> threads_;
};

}  // namespace quire::engine
