#pragma once

// A few threads and a bounded queue of work for them. At most one thread runs long work at a time.
// So in a pool of two or more threads, some thread is always left for short work.

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
  // Runs all queued work, then joins the threads.
  ~WorkerPool();

  // Runs the next queued work on the thread of the caller. Returns false when no work can start.
  // Meant for a pool without threads.
  bool RunOne();

  enum class Lane { kShort, kLong };

  // Queues `work`. Returns ResourceExhausted at once when the queue is full. Work of one lane
  // starts in order. Thread-safe.
  absl::Status Submit(Lane lane, std::function<void()> work);

  // Returns the longest time that any thread has spent on its present piece of work.
  absl::Duration longest_busy() const;

 private:
  struct Work {
    Lane lane = Lane::kShort;
    std::function<void()> run;  // empty: nothing can start
  };

  void Run(base::Heartbeat& heartbeat);
  void RunWork(Work work);
  Work TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // returns empty work when nothing can start
  // Returns the queue to take from next; null while nothing can start.
  std::deque<std::function<void()>>* NextQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t max_queue_;
  base::Mutex mu_;
  base::CondVar work_available_;
  std::deque<std::function<void()>> short_ ABSL_GUARDED_BY(mu_);
  std::deque<std::function<void()>> long_ ABSL_GUARDED_BY(mu_);
  bool long_runs_ ABSL_GUARDED_BY(mu_) = false;
  bool last_was_long_ ABSL_GUARDED_BY(mu_) = false;  // true: the work taken last was long
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<base::Heartbeat> heartbeats_;  // one for each thread
  std::vector<std::thread> threads_;
};

}  // namespace quire::engine
