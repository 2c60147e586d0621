#pragma once

// Events, calls of the host, and recordings. A host needs them to enqueue work ahead of a device.

#include <cstdint>
#include <functional>

namespace quire::kernels {

// A mark in the enqueued work. A host that waits for the event waits for the work before the mark.
class Event {
 public:
  virtual ~Event() = default;
};

// A function of the host that is enqueued like other work. It runs after the work enqueued before
// it and before the work enqueued after it, perhaps on another thread. It must enqueue nothing.
struct HostWork {
  std::function<void()> run;
  // The memory that `run` writes and that copies enqueued later read.
  void* output = nullptr;
  int64_t output_bytes = 0;
};

// Work that was recorded instead of run. It can be enqueued as a whole, any number of times.
class Recording {
 public:
  virtual ~Recording() = default;
};

}  // namespace quire::kernels
