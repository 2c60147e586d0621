#pragma once

// The parts of an engine. LoadEngineParts loads the parts from a model file. Tests make parts with
// a fake model instead.

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "base/clock.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/model.h"
#include "engine/request/engine_info.h"
#include "files/state_directory.h"
#include "kernels/backend.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

// Members are destroyed from the last to the first, so that the model is destroyed before the
// backend on which it computes.
struct EngineParts {
  // EngineConfig::kv_disk_dir; null: none. Locked before a model is loaded.
  std::unique_ptr<files::StateDirectory> directory;
  std::shared_ptr<const void> files;  // the mapped model file, for a backend that computes on it
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;  // null: none, or none that can be used
  std::string no_chat;  // why the model's chat template cannot be used; empty: it can, or is absent
  std::unique_ptr<Model> model;
  std::unique_ptr<kernels::PreparedSampler> sampler;
  KvCache cache;
  StepLimits limits;
  ModelInfo model_info;
  ServerInfo server_info;
  const base::Clock* clock = &base::SteadyClock();  // the source of all times; not owned
};

// Opens the model and allocates its memory. An error says what to change.
absl::StatusOr<EngineParts> LoadEngineParts(const EngineConfig& config);

// Returns `status`, followed by `cure` if memory is exhausted.
absl::Status WithMemoryCure(const absl::Status& status, std::string_view cure);

// Allocates the memory for sampling the most rows of logits of a step.
absl::StatusOr<std::unique_ptr<kernels::PreparedSampler>> PrepareSampler(
    const text::Tokenizer& tokenizer, int64_t vocab_size, const StepLimits& limits,
    kernels::Backend& backend);

}  // namespace quire::engine
