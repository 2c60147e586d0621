#pragma once

// Kinds of enqueued work other than ops: events, calls of host functions, and recordings.

#include <cstdint>
#include <functional>

namespace quire::kernels {

// A mark in the enqueued work. To wait for an event is to wait for all work before its mark.
class Event {
 public:
  virtual ~Event() = default;
};

// A host function that is enqueued like other work. It runs after all work enqueued earlier and
// before all work enqueued later, possibly on another thread. The function must not enqueue work.
struct HostWork {
  std::function<void()> run;
  // The host memory that `run` writes and that copies enqueued later read; null if there is none.
  void* output = nullptr;
  int64_t output_bytes = 0;
};

// Work that was recorded instead of run. It can be enqueued as a whole, any number of times.
class Recording {
 public:
  virtual ~Recording() = default;
};

}  // namespace quire::kernels
