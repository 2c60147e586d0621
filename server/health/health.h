#pragma once

// Decides whether the server is live and ready, and makes the answers to probes.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/heartbeat.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "server/call/egress.h"

namespace quire::server {

// Judges whether the server is live and ready. Thread-safe. No method waits for a thread that it
// judges.
//
// A thread that waits for work is healthy, however long it waits. A thread that has been busy with
// one piece of work for longer than `watchdog_timeout` hangs, and only a restart helps. The server
// judges its listener by calling itself: after three calls in a row without an answer, the listener
// is dead. Failing steps make the server unready but not dead. The server goes on, and counts as
// ready again after a while.
class Health {
 public:
  // If `watchdog_timeout` is zero, no thread ever counts as hanging. `egress` must outlive this
  // object.
  Health(absl::Duration watchdog_timeout, const Egress& egress)
      : watchdog_timeout_(watchdog_timeout), egress_(egress) {}

  // Must be called when the model is loaded and the server takes calls. Must be called again with
  // null before `engine` is destroyed, unless `engine` outlives this object.
  void SetEngine(const engine::Engine* engine) { engine_ = engine; }
  const engine::Engine* engine() const { return engine_; }

  // Records the result of the server's last call to its own listener.
  void NoteCall(const absl::Status& status);
  // Returns the heartbeat of the thread that makes the calls to the listener.
  base::Heartbeat& watch() { return watch_; }

  // Returns one sentence for each part that hangs or is dead. Returns an empty list if the server
  // is live.
  std::vector<std::string> Hung() const;
  // Returns the reasons why a request would probably fail although the server is live.
  std::vector<std::string> Failing() const;

  // Returns true if the present step has run for longer than the watchdog's timeout.
  bool StepHangs() const;

  // Return the answers to probes: "", or the reasons, one on each line.
  std::string WhyNotLive() const;
  std::string WhyNotReady() const;

 private:
  // Returns true if a thread that has been busy for so long hangs.
  bool IsTooLong(absl::Duration busy) const;

  const absl::Duration watchdog_timeout_;
  const Egress& egress_;
  std::atomic<const engine::Engine*> engine_ = nullptr;
  base::Heartbeat watch_;

  mutable base::Mutex mu_;
  int64_t unanswered_calls_ ABSL_GUARDED_BY(mu_) = 0;  // in a row, up to the last call
  absl::Status last_call_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server
