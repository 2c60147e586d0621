#pragma once

// Kinds of enqueued work other than ops: events and recordings.

namespace quire::kernels {

// A mark in the enqueued work. To wait for an event is to wait for all work before its mark.
class Event {
 public:
  virtual ~Event() = default;
};

// Work that was recorded instead of run. It can be enqueued as a whole, any number of times.
class Recording {
 public:
  virtual ~Recording() = default;
};

}  // namespace quire::kernels
