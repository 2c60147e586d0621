#pragma once

// Makes an engine of its parts: one with threads of its own, or one that its owner steps.

#include <memory>

#include "absl/status/statusor.h"

#include "engine/engine.h"
#include "engine/engine_loader.h"

namespace quire::engine {

// Computes a warm-up token and starts the threads.
absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(EngineParts parts, const EngineConfig& config);

// An engine without threads: its owner runs the work of each, in any order, so that a run can be
// repeated exactly.
class SteppedEngine : public Engine {
 public:
  // Runs the frontend's next work; false when none is queued.
  virtual bool RunFrontend() = 0;
  // Runs one step; false when the next could do nothing more before some event.
  virtual bool Step() = 0;
};

absl::StatusOr<std::unique_ptr<SteppedEngine>> MakeSteppedEngine(EngineParts parts,
                                                                 EngineConfig config);

}  // namespace quire::engine
