#pragma once

// The engine's output: the server implements one per request.

#include <functional>

#include "absl/status/status.h"

#include "engine/request/token_delta.h"

namespace quire::engine {

// Called only by the step thread (SetOnRoom by the submitting thread; Finish may instead come from
// a frontend thread when the request never reached the step thread). No call blocks or takes long.
class TokenSink {
 public:
  virtual ~TokenSink() = default;

  // True if `num_deltas` more can be buffered; asked before a step is planned. While it is false,
  // the request's sequences are stalled: not planned, and the first to be preempted.
  virtual bool CanTake(int32_t num_deltas) const = 0;
  // Called before the first CanTake. A sink whose CanTake was false calls `on_room` when more can
  // be buffered: from any thread, but under no lock that CanTake takes. A sink that is never full
  // may ignore it.
  virtual void SetOnRoom(std::function<void()> /*on_room*/) {}
  virtual void Put(TokenDelta delta) = 0;
  // Exactly once, after the last Put. OK: every sample ended with a finish reason. CANCELLED,
  // DEADLINE_EXCEEDED, ...: why it was cut short.
  virtual void Finish(const absl::Status& status, const RequestSummary& summary) = 0;
};

}  // namespace quire::engine
