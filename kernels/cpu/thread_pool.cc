#include "kernels/cpu/thread_pool.h"

#include <chrono>

namespace quire::kernels::cpu {
namespace {

constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kInside = kOpen - 1;

// The time that a worker spins before it parks. It is longer than the gap between two ops of a
// step, and too short to matter on an idle machine.
constexpr auto kSpin = std::chrono::microseconds(50);
// The interval at which parked workers check again. No wake-up is ever lost, so the check is only a
// safeguard.
constexpr auto kParkedLook = std::chrono::seconds(1);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

uint64_t Epoch(uint64_t state) { return state >> 32; }

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { Work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    base::MutexLock lock(mu_);
    stopping_.store(true);
    wake_.NotifyAll();
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t num_items, Loop loop) {
  if (num_items <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < num_items; ++i) loop(i, 0);
    return;
  }
  job_ = {&loop, num_items};
  next_item_.store(0, std::memory_order_relaxed);
  const uint64_t epoch = Epoch(state_.load(std::memory_order_relaxed)) + 1;
  state_.store(epoch << 32 | kOpen);  // sequentially consistent with num_parked_
  if (num_parked_.load() > 0) {
    base::MutexLock lock(mu_);
    wake_.NotifyAll();
  }
  RunItems(0);
  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  while ((state_.load(std::memory_order_acquire) & kInside) != 0) Pause();
}

void ThreadPool::RunItems(int thread) {
  for (;;) {
    const int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= job_.num_items) return;
    (*job_.loop)(item, thread);
  }
}

bool ThreadPool::AwaitJob(uint64_t* epoch) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  for (int spins = 0;; ++spins) {
    const uint64_t now = Epoch(state_.load(std::memory_order_acquire));
    if (now != *epoch) {
      *epoch = now;
      return true;
    }
    if (stopping_.load(std::memory_order_relaxed)) return false;
    Pause();
    // Reading the clock costs as much as several checks.
    if (spins % 16 == 15 && std::chrono::steady_clock::now() >= deadline) break;
  }
  base::MutexLock lock(mu_);
  num_parked_.fetch_add(1);
  while (Epoch(state_.load()) == *epoch && !stopping_.load()) wake_.WaitFor(mu_, kParkedLook);
  num_parked_.fetch_sub(1);
  *epoch = Epoch(state_.load());
  return !stopping_.load();
}

void ThreadPool::Work(int thread) {
  uint64_t epoch = 0;
  while (AwaitJob(&epoch)) {
    uint64_t state = state_.load(std::memory_order_acquire);
    while (Epoch(state) == epoch && (state & kOpen) != 0) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
        RunItems(thread);
        state_.fetch_sub(1, std::memory_order_acq_rel);
        break;
      }
    }
  }
}

}  // namespace quire::kernels::cpu
