#pragma once

// Sampling for a device that has no sampler of its own. Three pieces of work are enqueued: a copy
// of the logits to the host, a host function that draws the tokens, and a copy back.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/device.h"
#include "kernels/sampling/sampler.h"

namespace quire::kernels::cuda {

class HostSampler final : public PreparedSampler {
 public:
  // The device must outlive the sampler.
  static absl::StatusOr<std::unique_ptr<HostSampler>> Create(Device& device,
                                                             const SamplerSpec& spec);

  // Enqueues the op. `args.sampler` is a HostSampler.
  static absl::Status Enqueue(const SampleArgs& args);

 private:
  HostSampler(Device& device, const SamplerSpec& spec, DeviceBuffer logits, DeviceBuffer drawn);

  absl::Status EnqueueHere(const SampleArgs& args);

  Device& device_;
  sampling::Sampler sampler_;  // used only by enqueued work
  // Pinned memory of the host. All calls share it, because enqueued work runs in order.
  const DeviceBuffer logits_, drawn_;
};

}  // namespace quire::kernels::cuda
