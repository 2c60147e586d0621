#pragma once

// Lets long work ask now and then whether its result is still wanted.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace quire::base {

// While an Interrupt exists, the work of its thread may be cut short. Loops in that work call
// Interrupted(), and stop when it returns true. Then the result is unfinished, and the owner of the
// Interrupt discards it. A thread has at most one Interrupt.
class Interrupt {
 public:
  // `check` is called on this thread. It returns OK, or the reason why the work is no longer
  // wanted.
  explicit Interrupt(std::function<absl::Status()> check);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Returns the reason why the work was cut short. OK means that the work was not cut short and the
  // result is whole.
  const absl::Status& status() const { return status_; }

 private:
  friend bool Interrupted(int64_t work);
  bool Spend(int64_t work);

  const std::function<absl::Status()> check_;
  int64_t left_;  // work until the next check
  absl::Status status_;
};

// Returns true when the work must stop. Later calls then also return true. Always returns false
// without an Interrupt. `work` is the work done since the last call, in bytes or steps of similar
// cost. The check runs once for every 16 K of work, so a call costs almost nothing.
bool Interrupted(int64_t work = 1);

}  // namespace quire::base
