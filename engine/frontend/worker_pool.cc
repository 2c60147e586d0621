#include "engine/frontend/worker_pool.h"

#include <chrono>

#include "absl/strings/str_cat.h"

namespace quire::engine {

WorkerPool::WorkerPool(int32_t num_threads, int32_t max_queue)
    : max_queue_(static_cast<size_t>(max_queue)) {
  for (int32_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() {
  {
    base::MutexLock lock(mu_);
    stopping_ = true;
  }
  work_available_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status WorkerPool::Submit(std::function<void()> work) {
  {
    base::MutexLock lock(mu_);
    if (queue_.size() >= max_queue_) {
      return absl::ResourceExhaustedError(absl::StrCat("the frontend's queue is full (", max_queue_,
                                                       " requests being tokenized); try again"));
    }
    queue_.push_back(std::move(work));
  }
  work_available_.NotifyOne();
  return absl::OkStatus();
}

void WorkerPool::Run() {
  while (true) {
    std::function<void()> work;
    {
      base::MutexLock lock(mu_);
      while (queue_.empty() && !stopping_) work_available_.WaitFor(mu_, std::chrono::seconds(1));
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace quire::engine
