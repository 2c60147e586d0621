#pragma once

// Creates the model of an architecture, by the name of the architecture.

#include <memory>

#include "absl/status/statusor.h"

#include "engine/model/model.h"
#include "files/model_files.h"
#include "kernels/backend.h"

namespace quire::engine {

// Checks that the tensors of `files` are exactly those of the model, without reading their data.
// CreateModel makes the same check.
absl::Status CheckModel(const ModelConfig& config, const files::OpenedModel& files);

// Creates a model and prepares the weights of `files` on `backend`. `files` and `backend` must
// outlive the model. Returns InvalidArgument if config.architecture is not supported.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(const ModelConfig& config,
                                                   const files::OpenedModel& files,
                                                   kernels::Backend& backend,
                                                   const StepLimits& limits);

}  // namespace quire::engine
