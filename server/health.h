#pragma once

// Whether the server lives and is ready: what probes are told, and why.

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
#include "server/egress.h"

namespace quire::server {

// A thread that waits for work is healthy, however long; one that has been at a single piece of it
// for longer than `watchdog_timeout` hangs, and nothing but a restart helps. The listener is judged
// by calls that the server makes to itself: it is dead after three in a row without an answer.
// Steps that fail make the server unready, not dead: it goes on, and is given another chance after
// a while. Thread-safe; no question waits for a thread that it is about.
class Health {
 public:
  // `watchdog_timeout` of zero: no thread is said to hang. `egress` must outlive this.
  Health(absl::Duration watchdog_timeout, const Egress& egress)
      : watchdog_timeout_(watchdog_timeout), egress_(egress) {}

  // The model is loaded, and calls are taken. `engine` must outlive this, or be replaced by null.
  void SetEngine(const engine::Engine* engine) { engine_ = engine; }
  const engine::Engine* engine() const { return engine_; }

  // What the last call through the real listener came to.
  void NoteCall(const absl::Status& status);
  // Whoever makes these calls, that is, watches.
  base::Heartbeat& watch() { return watch_; }

  // What hangs or is dead, a sentence each; none: the server lives.
  std::vector<std::string> Hung() const;
  // Why a request would probably fail, though the server lives.
  std::vector<std::string> Failing() const;

  // For probes: empty, or the reasons, one a line.
  std::string WhyNotLive() const;
  std::string WhyNotReady() const;

 private:
  const absl::Duration watchdog_timeout_;
  const Egress& egress_;
  std::atomic<const engine::Engine*> engine_ = nullptr;
  base::Heartbeat watch_;

  mutable base::Mutex mu_;
  int64_t unanswered_calls_ ABSL_GUARDED_BY(mu_) = 0;  // in a row, up to the last
  absl::Status last_call_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server
