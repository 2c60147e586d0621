#pragma once

// Architectures by name.

#include <memory>

#include "absl/status/statusor.h"

#include "engine/model/model.h"
#include "engine/weights/model_files.h"
#include "kernels/backend.h"

namespace quire::engine {

// Whether the tensors of `files` are those of the model, one and all: what CreateModel asks first,
// without reading them.
absl::Status CheckModel(const ModelConfig& config, const OpenedModel& files);

// Prepares the weights of `files` on `backend`; both must outlive the model. InvalidArgument names
// what is supported when config.architecture is not.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(const ModelConfig& config,
                                                   const OpenedModel& files,
                                                   kernels::Backend& backend,
                                                   const StepLimits& limits);

}  // namespace quire::engine
