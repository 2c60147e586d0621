#pragma once

// Decides whether the server is live and ready, and gives the reasons that probes are told.

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

// A thread that waits for work is healthy, however long it waits. A thread that has been busy with
// one piece of work for longer than `watchdog_timeout` hangs, and only a restart helps. The
// listener is judged by calls that the server makes to itself: it is dead after three in a row
// without an answer. Failing steps make the server unready, not dead: it goes on, and counts as
// ready again after a while. Thread-safe. No method waits for a thread that it judges.
class Health {
 public:
  // With a `watchdog_timeout` of zero no thread is found to hang. `egress` must outlive this.
  Health(absl::Duration watchdog_timeout, const Egress& egress)
      : watchdog_timeout_(watchdog_timeout), egress_(egress) {}

  // Called when the model is loaded and calls are taken. `engine` must outlive this, or be replaced
  // by null.
  void SetEngine(const engine::Engine* engine) { engine_ = engine; }
  const engine::Engine* engine() const { return engine_; }

  // Records how the last call through the real listener ended.
  void NoteCall(const absl::Status& status);
  // The heartbeat of the thread that makes these calls.
  base::Heartbeat& watch() { return watch_; }

  // One sentence for each thing that hangs or is dead. Empty: the server is live.
  std::vector<std::string> Hung() const;
  // Reasons why a request would probably fail although the server is live.
  std::vector<std::string> Failing() const;

  // The answers to probes: empty, or the reasons, one on each line.
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
