#pragma once

// A pool of threads for parallel loops that take microseconds. The caller takes part in a loop. A
// loop ends when its items are done, not when every worker has arrived. So a worker that the system
// has descheduled delays only the item that it holds. Workers spin for a while between loops, then
// park.
//
// Only one thread at a time may call ParallelFor, and not from inside a loop.

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

#include "base/mutex.h"

namespace quire::kernels::cpu {

class ThreadPool {
 public:
  // `item` is in [0, num_items). `thread` is in [0, num_threads); 0 is the thread of the caller.
  using Loop = absl::FunctionRef<void(int64_t item, int thread)>;

  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs each item once, on some thread. Items are taken in order. All items have run when this
  // returns.
  void ParallelFor(int64_t num_items, Loop loop);

 private:
  struct Job {
    const Loop* loop = nullptr;
    int64_t num_items = 0;
  };

  void Work(int thread);
  // Waits for a job whose epoch is not *epoch, and sets *epoch to the epoch of that job. Returns
  // false at shutdown.
  bool AwaitJob(uint64_t* epoch);
  void RunItems(int thread);

  // Bits: epoch << 32 | open << 31 | number of workers that are in the job. A worker enters a job
  // only while the job is open. So job_ may be overwritten once the job is closed and no worker is
  // in it.
  std::atomic<uint64_t> state_{0};
  // Written only while the job is closed and no worker is in it. Read by the workers in the job.
  Job job_;
  alignas(64) std::atomic<int64_t> next_item_{0};
  alignas(64) std::atomic<int> num_parked_{0};
  std::atomic<bool> stopping_{false};
  // A worker holds mu_ from its last check until it waits, and NotifyAll is called under mu_. So no
  // worker misses a wake-up.
  base::Mutex mu_;
  base::CondVar wake_;
  std::vector<std::thread> workers_;
};

}  // namespace quire::kernels::cpu
