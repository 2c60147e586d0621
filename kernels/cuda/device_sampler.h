#pragma once

// The op Sample of the CUDA backend (sample.cuh). The host uploads what changed in the rows since
// the call before, which for a sequence that goes on is its position. Logits stay on the device.
//
// Penalties and sets of ids are uploaded in each call that uses them: 8 bytes for each different
// token in the window, and a bit for each id of the vocabulary.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/sample_rows.h"
#include "kernels/ops/sample.h"
#include "kernels/sampling/sampler.h"
#include "kernels/table_mirror.h"

namespace quire::kernels::cuda {

class DeviceSampler final : public PreparedSampler {
 public:
  // Allocates all memory but that of penalties and sets. `device` must outlive the sampler.
  static absl::StatusOr<std::unique_ptr<DeviceSampler>> Create(Device& device,
                                                               const SamplerSpec& spec);

  // Implements Backend::Sample. `args.sampler` is a DeviceSampler.
  static absl::Status Enqueue(const SampleArgs& args);

  void Take(std::vector<absl::StatusOr<SampledRow>>& results) override;

 private:
  // One call whose results have not been taken. The call after the next reuses the memory.
  struct Call {
    DeviceBuffer changes, data;    // pinned; copied to the device
    DeviceBuffer results, tops;    // pinned; copied from the device
    std::vector<int32_t> num_top;  // by row, as in DeviceSampleRow
  };

  DeviceSampler(Device& device, const SamplerSpec& spec);
  absl::Status Allocate(const SamplerSpec& spec);
  absl::Status EnqueueHere(const SampleArgs& args);
  // Writes `row` for the device, and appends what it refers to to data_.
  DeviceSampleRow Pack(const SampleRow& row);
  void PackSeen(const SampleRow& row, DataRange& seen);
  template <typename T>
  DataRange AppendData(std::span<const T> values);
  absl::Status Upload(const SampleArgs& args, Call& call);
  absl::Status Launch(const SampleArgs& args, Call& call);
  absl::StatusOr<SampledRow> Unpack(const Call& call, size_t i) const;

  Device& device_;
  const int64_t vocab_size_, most_rows_;
  const sampling::DrawableIds drawable_;
  std::vector<int32_t> end_ids_;
  int64_t grid_size_ = 1;

  DeviceBuffer constants_;  // the table of the noise's reach, the holes, end_ids_
  DeviceBuffer rows_, changes_, data_device_, edited_, results_, tops_;
  TableMirror row_words_;           // rows_ as words
  std::vector<int32_t> data_;       // kept for its capacity
  std::vector<int32_t> in_output_;  // by id; -1 for ids that have not been seen
  std::vector<SeenToken> seen_;
  std::array<Call, 2> calls_;
  int64_t num_enqueued_ = 0, num_taken_ = 0;
};

}  // namespace quire::kernels::cuda
