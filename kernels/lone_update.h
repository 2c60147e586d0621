#pragma once

// Enqueues the update of a sampler's table outside of the steps of a model, whose upload carries it
// otherwise.

#include "absl/status/statusor.h"

#include "kernels/backend.h"

namespace quire::kernels {

struct LoneUpdate {
  DeviceBuffer host, changes;
};

// Enqueues `update`. The result must live until the enqueued work has run.
absl::StatusOr<LoneUpdate> EnqueueLoneUpdate(Backend& backend, const TableUpdate& update);

}  // namespace quire::kernels
