#pragma once

// A few threads and a bounded queue of work for them. At most one thread is at long work, so that
// short work never stands behind two of it; a pool of one thread has no such promise to give.

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
  // Joins when what is queued has run.
  ~WorkerPool();

  // Runs what is next on the caller's thread; false when nothing can start. For a pool without
  // threads.
  bool RunOne();

  enum class Lane { kShort, kLong };

  // ResourceExhausted, at once, when the queue is full. Work of one lane starts in order.
  // Thread-safe.
  absl::Status Submit(Lane lane, std::function<void()> work);

  // How long the thread that has been at one piece of work the longest has been at it.
  absl::Duration longest_busy() const;

 private:
  struct Work {
    Lane lane = Lane::kShort;
    std::function<void()> run;  // empty: there is nothing more, the pool goes
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
  bool last_was_long_ ABSL_GUARDED_BY(mu_) = false;  // of what was taken
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<base::Heartbeat> heartbeats_;  // of each thread
  std::vector<std::thread> threads_;
};

}  // namespace quire::engine
