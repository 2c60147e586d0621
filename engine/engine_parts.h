#pragma once

// The parts of an engine. LoadEngineParts loads them from a model file; tests pass a fake model.

#include <memory>

#include "absl/status/statusor.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/model.h"
#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"

namespace quire::engine {

// Destroyed from the last member to the first: the model before the backend it computes on.
struct EngineParts {
  std::shared_ptr<const void> files;  // the mapped model file, for a backend that computes on it
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // null: the model has none
  std::unique_ptr<Model> model;
  KvCache cache;
  StepLimits limits;
  ModelInfo model_info;
  ServerInfo server_info;
  const base::Clock* clock = &base::SteadyClock();  // for all times; not owned
};

// Opens the model and allocates its memory. Errors name what to change.
absl::StatusOr<EngineParts> LoadEngineParts(const EngineConfig& config);

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
