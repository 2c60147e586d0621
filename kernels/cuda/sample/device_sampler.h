#pragma once

// The op Sample of the CUDA backend (sample.cuh). Logits stay on the device.
//
// So does what a sequence's draws refer to: biases, sets of ids, and how often each id occurs in
// the window of the penalties. It is in the sequence's slot, and the host sends it once, in the
// call in which the sequence first needs it. In later calls the host sends changes alone: for a
// sequence that goes on these are its position, the count of its new token, and that of the token
// that left the window. They ride in the upload of the step (PreparedSampler::Prepare).

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/sample/sample_rows.h"
#include "kernels/ops/sample.h"
#include "kernels/sampling/sampler.h"
#include "kernels/table_mirror.h"

namespace quire::kernels::cuda {

class DeviceSampler final : public PreparedSampler {
 public:
  // Allocates all memory. `device` must outlive the sampler.
  static absl::StatusOr<std::unique_ptr<DeviceSampler>> Create(Device& device,
                                                               const SamplerSpec& spec);
  // Implements Backend::MostSampleChanges.
  static int64_t MostChanges(int64_t max_rows, int64_t max_draws);

  // Implements Backend::Sample. `args.sampler` is a DeviceSampler.
  static absl::Status Enqueue(const SampleArgs& args);

  // Waits only if more sequences get slots than there is pinned memory for, kStartsAtOnce.
  absl::StatusOr<TableUpdate> Prepare(std::span<const SampleRow> rows) override;
  void Take(std::vector<absl::StatusOr<SampledRow>>& results) override;

 private:
  static constexpr int64_t kStartsAtOnce = 8;

  // One call whose results have not been taken. The call after the next reuses the memory.
  struct Call {
    DeviceBuffer starts;           // pinned; slots that are copied to the device
    DeviceBuffer results, tops;    // pinned; copied from the device
    std::vector<int32_t> num_top;  // by row, as in DeviceSampleRow
  };

  // How often an id occurs in the window of the penalties.
  struct Count {
    int32_t in_window = 0, in_output = 0;
  };

  // The host's knowledge of a slot on the device.
  struct Slot {
    int64_t sequence = -1;
    int64_t last_call = -1;  // that used it
    bool has_penalties = false, has_banned = false;
    int64_t begin = 0, end = 0;  // the window, in tokens of the sequence
    absl::flat_hash_map<int32_t, Count> counts;
  };

  DeviceSampler(Device& device, const SamplerSpec& spec);
  absl::Status Allocate(const SamplerSpec& spec);
  absl::Status EnqueueHere(const SampleArgs& args);
  Call& next_call() { return calls_[static_cast<size_t>(num_enqueued_ % 2)]; }
  absl::StatusOr<DeviceSampleRow> Pack(const SampleRow& row, Call& call);
  // Returns the index of the slot that has the data of `row`.
  absl::StatusOr<int32_t> SlotOf(const SampleRow& row, Call& call);
  // Moves the window of `slot` to that of `row`, and lists the changes. Returns false, without a
  // list, if the slot lacks what the row needs.
  bool Continue(const SampleRow& row, Slot& slot);
  // Writes the data of `row` into `slot`, and enqueues the copy. The data has a place of its own in
  // pinned memory, which the call after the next reuses.
  absl::Status Start(const SampleRow& row, Slot& slot, Call& call);
  // Counts the tokens [begin, end) of `row`, `by` each, and adds their ids to touched_.
  void CountTokens(const SampleRow& row, int64_t begin, int64_t end, int32_t by, Slot& slot);
  int64_t FirstWord(const Slot& slot) const {
    return row_words_.size() + (&slot - slots_.data()) * layout_.num_words();
  }
  absl::Status Launch(const SampleArgs& args, Call& call);
  absl::StatusOr<SampledRow> Unpack(const Call& call, size_t i) const;

  Device& device_;
  const int64_t vocab_size_, most_rows_;
  const sampling::DrawableIds drawable_;
  const SlotLayout layout_;
  std::vector<int32_t> end_ids_;
  int64_t grid_size_ = 1;

  DeviceBuffer constants_;  // the table of the noise's reach, the holes, end_ids_
  DeviceBuffer table_;      // the rows, then the slots
  DeviceBuffer edited_, results_, tops_;
  TableMirror row_words_;  // the rows as words
  std::vector<TableChange> changes_;
  std::vector<Slot> slots_;
  absl::flat_hash_map<int64_t, int32_t> slot_of_;  // by sequence
  size_t last_slot_ = 0;                           // the last that was given away
  std::vector<int32_t> touched_;                   // kept for its capacity
  std::array<Call, 2> calls_;
  int64_t num_starts_ = 0;  // of the call that is prepared
  int64_t num_enqueued_ = 0, num_taken_ = 0;
  std::optional<int64_t> num_prepared_;  // rows of the call that is to be enqueued next
};

}  // namespace quire::kernels::cuda
