#include "kernels/sampling/penalties.h"

#include <algorithm>
#include <utility>

namespace quire::kernels::sampling {

void Penalties::Apply(const DrawParams& params, std::span<const int32_t> tokens, int64_t prompt_len,
                      std::span<float> logits) {
  const auto size = static_cast<int64_t>(tokens.size());
  const int64_t window =
      params.penalty_last_n < 0 ? size : std::min<int64_t>(size, params.penalty_last_n);
  const auto num_ids = static_cast<int64_t>(std::min(logits.size(), occurrences_.size()));
  for (int64_t i = size - window; i < size; ++i) {
    const int32_t id = tokens[i];
    if (id < 0 || id >= num_ids) continue;
    Count& count = occurrences_[id];
    if (count.in_window++ == 0) seen_.push_back(id);
    if (i >= prompt_len) ++count.in_output;
  }
  for (const int32_t id : seen_) {
    const Count count = std::exchange(occurrences_[id], Count());
    Penalise(params, count.in_output, logits[id]);
  }
  seen_.clear();
}

}  // namespace quire::kernels::sampling
