#pragma once

// Long work on a thread asks now and then whether anybody still wants it.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace quire::base {

// While one lives, what runs on its thread may be cut short: a loop that Interrupted() stops leaves
// its result unfinished, and whoever made the Interrupt throws that away. At most one a thread.
class Interrupt {
 public:
  // `check` says why the work is no longer wanted, or OK. Called on this thread.
  explicit Interrupt(std::function<absl::Status()> check);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // What cut the work short; OK: nothing has, its result is whole.
  const absl::Status& status() const { return status_; }

 private:
  friend bool Interrupted(int64_t work);
  bool Spend(int64_t work);

  const std::function<absl::Status()> check_;
  int64_t left_;  // work until the next check
  absl::Status status_;
};

// Whether to stop here. `work` is what was done since the last call, in bytes or steps of their
// cost: every 16 K of it the check is made, so that a call costs next to nothing. Stays true. Never
// true without an Interrupt.
bool Interrupted(int64_t work = 1);

}  // namespace quire::base
