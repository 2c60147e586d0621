#pragma once

// The work of kernels/ops/sample.h on the host. The result of a row depends on that row alone, not
// on the batch, on threads or on order.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/ops/sample.h"
#include "kernels/sampling/kept_set.h"
#include "kernels/sampling/penalties.h"
#include "kernels/sampling/typical_p.h"
#include "kernels/tensor_view.h"

namespace quire::kernels::sampling {

// Calls its second argument with 0 .. n - 1, perhaps from several threads, and returns when all
// calls have returned.
using ParallelFor = std::function<void(int64_t n, const std::function<void(int64_t)>&)>;

// Not thread-safe. Allocates nothing per row after warm-up, except for log-probabilities.
class Sampler {
 public:
  // `vocab_size` is that of the model, and `end_ids` are those of the tokenizer. `num_lanes` is the
  // most rows processed at once. `without_piece` lists, ascending, the ids without a piece. These
  // ids are never drawn, but the softmax behind the log-probabilities includes them.
  Sampler(int32_t vocab_size, std::vector<int32_t> end_ids, int32_t num_lanes = 1,
          std::vector<int32_t> without_piece = {});
  Sampler(Sampler&& other) noexcept;
  ~Sampler();

  // Handles one row, whose logits are at most vocab_size. Returns Internal if the largest logit of
  // the row is not finite, which is a fault of the model or the device. Returns InvalidArgument if
  // the allowed and banned ids of the request leave no id to draw. Each of these errors ends only
  // that request.
  absl::StatusOr<SampledRow> Sample(std::span<const float> logits, const SampleRow& row);

  // Handles all rows; results[i] belongs to rows[i]. Without `parallel_for`, runs on the thread of
  // the caller, with the same results.
  void Sample(const TensorView& logits, std::span<const SampleRow> rows,
              const ParallelFor& parallel_for, std::vector<absl::StatusOr<SampledRow>>& results);

 private:
  struct Lane;  // the scratch of one row at a time
  absl::StatusOr<SampledRow> SampleWith(Lane& lane, std::span<const float> logits,
                                        const SampleRow& row) const;
  // Returns the logits to draw from.
  std::span<const float> EditLogits(Lane& lane, std::span<const float> logits,
                                    const SampleRow& row) const;

  const int32_t vocab_size_;
  int32_t num_drawable_;        // this id and all later ones have no piece
  std::vector<int32_t> holes_;  // ids below num_drawable_ without a piece
  const std::vector<int32_t> end_ids_;
  std::vector<Lane> lanes_;
};

}  // namespace quire::kernels::sampling
