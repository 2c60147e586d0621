#pragma once

// The interface through which the engine delivers output. The server implements one sink per
// request.

#include <functional>

#include "absl/status/status.h"

#include "engine/request/token_delta.h"

namespace quire::engine {

// The step thread calls all functions, with these exceptions. The submitting thread calls
// SetOnRoom. Another thread may call Finish if the request never reached the step thread. No
// call may block or take long. When a device hangs, Engine::FailAll calls Finish on a third thread.
// Only then may Put or Finish be called again afterwards.
class TokenSink {
 public:
  virtual ~TokenSink() = default;

  // Returns true if the sink can buffer `num_deltas` more deltas. Called before a step is planned.
  // While the result is false, the request's sequences are stalled: they are not planned, and they
  // are the first to be preempted.
  virtual bool CanTake(int32_t num_deltas) const = 0;
  // Called before the first CanTake. A sink whose CanTake returned false calls `on_room` when it
  // can buffer more. It may do so on any thread, but must not hold a lock that CanTake takes. A
  // sink that is never full may ignore `on_room`.
  virtual void SetOnRoom(std::function<void()> /*on_room*/) {}
  virtual void Put(TokenDelta delta) = 0;
  // Called exactly once, after the last Put. `status` is OK if every sample ended with a finish
  // reason. Otherwise (CANCELLED, DEADLINE_EXCEEDED, ...) it tells why the request was cut short.
  virtual void Finish(const absl::Status& status, const RequestSummary& summary) = 0;
};

}  // namespace quire::engine
