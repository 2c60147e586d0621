#pragma once

// What an engine is put together from. Loaded from a model file by LoadEngineParts; tests hand in a
// fake model.

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
  const base::Clock* clock = &base::SteadyClock();  // of all that is timed; not owned
};

// Opens the model, takes the memory. Fails with what to change.
absl::StatusOr<EngineParts> LoadEngineParts(const EngineConfig& config);

// Makes a warm-up token and starts the threads.
absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(EngineParts parts, const EngineConfig& config);

// An engine without threads: its owner does the work of each, in any order, and can do it again.
class SteppedEngine : public Engine {
 public:
  // The next work of the frontend; false when none is queued.
  virtual bool RunFrontend() = 0;
  // One step; false when the next could do no more before something happens.
  virtual bool Step() = 0;
};

absl::StatusOr<std::unique_ptr<SteppedEngine>> MakeSteppedEngine(EngineParts parts,
                                                                 EngineConfig config);

}  // namespace quire::engine
