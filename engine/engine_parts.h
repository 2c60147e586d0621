#pragma once

// What an engine is put together from. Loaded from a model file by LoadEngineParts; tests hand in a
// fake model.

#include <memory>

#include "absl/status/statusor.h"

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
};

// Opens the model, takes the memory. Fails with what to change.
absl::StatusOr<EngineParts> LoadEngineParts(const EngineConfig& config);

// Starts the threads and makes a warm-up token.
absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(EngineParts parts, const EngineConfig& config);

}  // namespace quire::engine
