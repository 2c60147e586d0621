#pragma once

// The engine's way out: the server implements it, one per request.

#include <functional>

#include "absl/status/status.h"

#include "engine/request/token_delta.h"

namespace quire::engine {

// Called by the step thread alone (SetOnRoom by whoever submits; Finish may instead come from a
// frontend thread when the request never reached the step thread). No call blocks or takes long.
class TokenSink {
 public:
  virtual ~TokenSink() = default;

  // Whether `num_deltas` more can be buffered; asked before a step is planned. While it says no,
  // the request's sequences are stalled: not planned, and the first to be preempted.
  virtual bool CanTake(int32_t num_deltas) const = 0;
  // Before the first CanTake. A sink that has said no calls `on_room` when more can be buffered;
  // from any thread, but under no lock that CanTake takes. One that never says no ignores it.
  virtual void SetOnRoom(std::function<void()> /*on_room*/) {}
  virtual void Put(TokenDelta delta) = 0;
  // Exactly once, after the last Put. OK: every sample ended with a finish reason. CANCELLED,
  // DEADLINE_EXCEEDED, ...: why it was cut short.
  virtual void Finish(const absl::Status& status, const RequestSummary& summary) = 0;
};

}  // namespace quire::engine
