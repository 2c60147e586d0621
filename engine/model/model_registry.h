#pragma once

// Architectures by name.

#include <memory>

#include "absl/status/statusor.h"

#include "engine/model/model.h"
#include "files/model_files.h"
#include "kernels/backend.h"

namespace quire::engine {

// Checks that the tensors of `files` are exactly those of the model, without reading them.
// CreateModel calls it first.
absl::Status CheckModel(const ModelConfig& config, const files::OpenedModel& files);

// Prepares the weights of `files` on `backend`; both must outlive the model. If config.architecture
// is not supported, InvalidArgument names those that are.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(const ModelConfig& config,
                                                   const files::OpenedModel& files,
                                                   kernels::Backend& backend,
                                                   const StepLimits& limits);

}  // namespace quire::engine
