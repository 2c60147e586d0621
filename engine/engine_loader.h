#pragma once

// The parts of an engine. LoadEngineParts loads them from a model file; tests pass a fake model.

#include <memory>

#include "absl/status/statusor.h"

#include "base/clock.h"
#include "engine/engine_info.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/model.h"
#include "kernels/backend.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

// Destroyed from the last member to the first: the model before the backend it computes on.
struct EngineParts {
  std::shared_ptr<const void> files;  // the mapped model file, for a backend that computes on it
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;  // null: the model has none
  std::unique_ptr<Model> model;
  KvCache cache;
  StepLimits limits;
  ModelInfo model_info;
  ServerInfo server_info;
  const base::Clock* clock = &base::SteadyClock();  // for all times; not owned
};

// Opens the model and allocates its memory. Errors name what to change.
absl::StatusOr<EngineParts> LoadEngineParts(const EngineConfig& config);

}  // namespace quire::engine
