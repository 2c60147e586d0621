#include "engine/frontend/worker_pool.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace quire::engine {

WorkerPool::WorkerPool(int32_t num_threads, int32_t max_queue)
    : max_queue_(static_cast<size_t>(max_queue)), heartbeats_(static_cast<size_t>(num_threads)) {
  for (base::Heartbeat& heartbeat : heartbeats_) {
    threads_.emplace_back([this, &heartbeat] { Run(heartbeat); });
  }
}

WorkerPool::~WorkerPool() {
  {
    base::MutexLock lock(mu_);
    stopping_ = true;
  }
  work_available_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
  while (RunOne()) {
  }
}

absl::Status WorkerPool::Submit(Lane lane, std::function<void()> work) {
  {
    base::MutexLock lock(mu_);
    if (short_.size() + long_.size() >= max_queue_) {
      return absl::ResourceExhaustedError(absl::StrCat("the frontend's queue is full (", max_queue_,
                                                       " requests being tokenized); try again"));
    }
    (lane == Lane::kLong ? long_ : short_).push_back(std::move(work));
  }
  work_available_.NotifyOne();
  return absl::OkStatus();
}

std::deque<std::function<void()>>* WorkerPool::NextQueue() {
  const bool may_be_long = !long_.empty() && !long_runs_;
  // Short and long work alternate, so that neither starves when one thread serves both lanes.
  if (may_be_long && (short_.empty() || !last_was_long_)) return &long_;
  return short_.empty() ? nullptr : &short_;
}

WorkerPool::Work WorkerPool::TakeNext() {
  std::deque<std::function<void()>>* queue = NextQueue();
  if (queue == nullptr) return {};
  Work work{.lane = queue == &long_ ? Lane::kLong : Lane::kShort, .run = std::move(queue->front())};
  queue->pop_front();
  last_was_long_ = work.lane == Lane::kLong;
  long_runs_ = long_runs_ || last_was_long_;
  return work;
}

void WorkerPool::RunWork(Work work) {
  work.run();
  if (work.lane == Lane::kShort) return;
  {
    base::MutexLock lock(mu_);
    long_runs_ = false;
  }
  work_available_.NotifyOne();  // the next long work may start
}

bool WorkerPool::RunOne() {
  Work work;
  {
    base::MutexLock lock(mu_);
    work = TakeNext();
  }
  if (!work.run) return false;
  RunWork(std::move(work));
  return true;
}

absl::Duration WorkerPool::longest_busy() const {
  absl::Duration longest;
  for (const base::Heartbeat& heartbeat : heartbeats_) {
    longest = std::max(longest, heartbeat.busy_for());
  }
  return longest;
}

void WorkerPool::Run(base::Heartbeat& heartbeat) {
  while (true) {
    Work work;
    {
      base::MutexLock lock(mu_);
      while (!(work = TakeNext()).run && !(stopping_ && long_.empty())) {
        work_available_.WaitFor(mu_, std::chrono::seconds(1));
      }
    }
    if (!work.run) return;
    const base::Busy busy(heartbeat);
    RunWork(std::move(work));
  }
}

}  // namespace quire::engine
