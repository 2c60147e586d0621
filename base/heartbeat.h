#pragma once

// Shows other threads how long a thread has been busy with its present piece of work.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/time/time.h"

namespace quire::base {

// One thread writes a Heartbeat, and any thread may read it. A thread that waits for work is idle,
// however long it waits.
class Heartbeat {
 public:
  void Begin() { busy_since_.store(Now(), std::memory_order_relaxed); }
  void End() { busy_since_.store(kIdle, std::memory_order_relaxed); }

  // Returns the time since Begin; zero when the thread is idle.
  absl::Duration busy_for() const {
    const int64_t since = busy_since_.load(std::memory_order_relaxed);
    return since == kIdle ? absl::ZeroDuration() : absl::Nanoseconds(Now() - since);
  }

 private:
  static constexpr int64_t kIdle = -1;

  // The time of a steady clock.
  static int64_t Now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  std::atomic<int64_t> busy_since_ = kIdle;
};

// Marks the thread of a heartbeat as busy while this object lives. One object covers one piece of
// work.
class Busy {
 public:
  explicit Busy(Heartbeat& heartbeat) : heartbeat_(heartbeat) { heartbeat_.Begin(); }
  ~Busy() { heartbeat_.End(); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Heartbeat& heartbeat_;
};

}  // namespace quire::base
