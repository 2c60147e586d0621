#pragma once

// Makes an engine from its parts: either an engine with its own threads, or an engine whose owner
// runs each step.

#include <memory>

#include "absl/status/statusor.h"

#include "engine/engine.h"
#include "engine/load/engine_loader.h"

namespace quire::engine {

// Computes a warm-up token and starts the threads.
absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(EngineParts parts, const EngineConfig& config);

// An engine without threads. The owner runs the work of the frontend and of the step thread. The
// owner chooses the order, so a run can be repeated exactly.
class SteppedEngine : public Engine {
 public:
  // Runs the next queued work of the frontend. Returns false when no work is queued.
  virtual bool RunFrontend() = 0;
  // Runs one step. Returns false if another step would do nothing until some event, such as a new
  // request, happens.
  virtual bool Step() = 0;
};

absl::StatusOr<std::unique_ptr<SteppedEngine>> MakeSteppedEngine(EngineParts parts,
                                                                 EngineConfig config);

}  // namespace quire::engine
