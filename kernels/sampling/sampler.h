#pragma once

// The work of kernels/ops/sample.h on the host. The result of a row depends on that row alone, not
// on the batch, on threads or on order.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

#include "kernels/ops/sample.h"

namespace quire::kernels::sampling {

// Calls its second argument with the items 0 .. n - 1, perhaps from several threads, and returns
// when all calls have returned. Calls that overlap in time have different lanes.
using ParallelFor =
    absl::FunctionRef<void(int64_t n, absl::FunctionRef<void(int64_t item, int lane)>)>;

// The ParallelFor without threads. All calls have lane 0.
void RunInOrder(int64_t n, absl::FunctionRef<void(int64_t item, int lane)> body);

// The ids that have a piece.
struct DrawableIds {
  explicit DrawableIds(const SamplerSpec& spec);

  int32_t end;                 // this id and all later ones have no piece
  std::vector<int32_t> holes;  // ids below `end` without a piece
};

// The errors of a row: its largest logit is not finite, and no id is left to draw.
absl::Status NotFinite(float max);
absl::Status NoneLeft();

// Not thread-safe. Allocates nothing per row after warm-up, except for log-probabilities.
class Sampler final : public PreparedSampler {
 public:
  // `num_lanes` is the most rows processed at once.
  explicit Sampler(const SamplerSpec& spec, int num_lanes = 1);
  ~Sampler() override;

  // Runs the op. Its tensors must be in memory of the host, and its arguments valid.
  void Run(const SampleArgs& args, ParallelFor parallel_for);
  void Take(std::vector<absl::StatusOr<SampledRow>>& results) override;

  // Handles one row. Returns the errors of Take. `previous_id` is the token that
  // row.previous stands for.
  absl::StatusOr<SampledRow> Sample(std::span<const float> logits, const SampleRow& row,
                                    int32_t previous_id = -1, int lane_index = 0);

 private:
  struct Lane;  // the scratch of one row at a time
  // Returns the logits to draw from.
  std::span<const float> EditLogits(Lane& lane, std::span<const float> logits, const SampleRow& row,
                                    int32_t previous_id) const;

  const int32_t vocab_size_;
  const DrawableIds drawable_;
  const std::vector<int32_t> end_ids_;
  std::vector<Lane> lanes_;
  // The results of the last two calls of Run, in turn.
  std::array<std::vector<absl::StatusOr<SampledRow>>, 2> results_;
  int64_t num_run_ = 0, num_taken_ = 0;
};

}  // namespace quire::kernels::sampling
