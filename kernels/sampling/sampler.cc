#include "kernels/sampling/sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/check.h"
#include "kernels/sampling/logit_edits.h"
#include "kernels/sampling/logprobs.h"
#include "kernels/sampling/min_p.h"
#include "kernels/sampling/row_passes.h"
#include "kernels/sampling/top_k_top_p.h"

namespace quire::kernels::sampling {

struct Sampler::Lane {
  explicit Lane(int32_t vocab_size) : penalties(vocab_size) {}

  std::vector<float> maxima;
  std::vector<float> edited;  // a copy of the row, when its logits are changed
  Penalties penalties;
  KeptSet kept;
  TypicalP typical_p;
};

Sampler::Sampler(int32_t vocab_size, std::vector<int32_t> end_ids, int32_t num_lanes,
                 std::vector<int32_t> without_piece)
    : vocab_size_(vocab_size),
      num_drawable_(vocab_size),
      holes_(std::move(without_piece)),
      end_ids_(std::move(end_ids)) {
  // Ids without a piece at the end of the vocabulary, the padding of many models, only shorten the
  // row. Any other id without a piece is a hole and costs a copy of the row.
  for (; !holes_.empty() && holes_.back() == num_drawable_ - 1; holes_.pop_back()) --num_drawable_;
  lanes_.reserve(num_lanes);
  for (int32_t i = 0; i < num_lanes; ++i) lanes_.emplace_back(vocab_size);
}

Sampler::Sampler(Sampler&& other) noexcept = default;
Sampler::~Sampler() = default;

absl::StatusOr<SampledRow> Sampler::Sample(std::span<const float> logits, const SampleRow& row) {
  return SampleWith(lanes_.front(), logits, row);
}

void Sampler::Sample(const TensorView& logits, std::span<const SampleRow> rows,
                     const ParallelFor& parallel_for,
                     std::vector<absl::StatusOr<SampledRow>>& results) {
  results.assign(rows.size(), SampledRow());
  const auto num_rows = static_cast<int64_t>(rows.size());
  const auto sample = [&](Lane& lane, int64_t i) {
    const std::span<const float> row(logits.data<const float>() + rows[i].row * logits.dim(1),
                                     static_cast<size_t>(logits.dim(1)));
    results[i] = SampleWith(lane, row, rows[i]);
  };
  const int64_t num_lanes = std::min<int64_t>(std::ssize(lanes_), num_rows);
  if (!parallel_for || num_lanes <= 1) {
    for (int64_t i = 0; i < num_rows; ++i) sample(lanes_.front(), i);
    return;
  }
  // Rows differ in cost, so each lane takes the next row when it is free.
  std::atomic<int64_t> next = 0;
  parallel_for(num_lanes, [&](int64_t lane) {
    for (int64_t i = next++; i < num_rows; i = next++) sample(lanes_[lane], i);
  });
}

// Returns the row itself, without its padding, when no logit changes.
std::span<const float> Sampler::EditLogits(Lane& lane, std::span<const float> logits,
                                           const SampleRow& row) const {
  const std::span<const float> drawable =
      logits.first(static_cast<size_t>(std::min<int64_t>(num_drawable_, std::ssize(logits))));
  const bool restricts = row.allowed != nullptr && !row.allowed->empty();
  if (!HasPenalties(row.params) && row.biases.empty() && !restricts && row.banned == nullptr &&
      !row.bans_end_ids && holes_.empty()) {
    return drawable;
  }
  lane.edited.assign(drawable.begin(), drawable.end());
  if (HasPenalties(row.params)) {
    QUIRE_CHECK(std::ssize(row.tokens) == row.prompt_len + row.position) << "tokens are missing";
    lane.penalties.Apply(row.params, row.tokens, row.prompt_len, lane.edited);
  }
  ApplyLogitBias(row.biases, lane.edited);
  if (restricts) ApplyAllowedIds(*row.allowed, lane.edited);
  Ban(holes_, lane.edited);
  if (row.bans_end_ids) Ban(end_ids_, lane.edited);
  if (row.banned != nullptr) Ban(*row.banned, lane.edited);
  return lane.edited;
}

absl::StatusOr<SampledRow> Sampler::SampleWith(Lane& lane, std::span<const float> logits,
                                               const SampleRow& row) const {
  QUIRE_CHECK(std::ssize(logits) <= vocab_size_) << "logits: got " << logits.size();
  lane.maxima.resize(NumRowBlocks(std::ssize(logits)));
  BlockMaxima(logits, lane.maxima);
  if (const float max = *std::max_element(lane.maxima.begin(), lane.maxima.end());
      !std::isfinite(max)) {
    return absl::InternalError(absl::StrFormat("logits: want a finite maximum, got %f", max));
  }
  if (row.given >= 0) {
    return SampledRow{.id = row.given,
                      .logprobs = ComputeLogprobs(logits, row.given, row.num_top.value_or(0))};
  }
  const std::span<const float> edited = EditLogits(lane, logits, row);
  lane.maxima.resize(NumRowBlocks(std::ssize(edited)));
  if (edited.data() != logits.data() || edited.size() != logits.size()) {
    BlockMaxima(edited, lane.maxima);
  }

  SampledRow sampled = {.id = ArgMax(edited, lane.maxima)};
  if (sampled.id < 0) {
    return absl::InvalidArgumentError(
        "sampling.allowed_token_ids: no id is left to draw: each one ends the output before "
        "stop.min_tokens, has no piece in the vocabulary, or has no probability");
  }
  if (row.params.temperature > 0.0f) {
    KeptSet& kept = lane.kept;
    kept.Reset(edited, lane.maxima, row.params.temperature);
    ApplyTopK(row.params.top_k, kept);
    lane.typical_p.Apply(row.params.typical_p, kept);
    ApplyTopP(row.params.top_p, kept);
    ApplyMinP(row.params.min_p, kept);
    sampled.id = kept.Draw({.seed = row.seed, .position = row.position});
  }
  if (row.num_top) sampled.logprobs = ComputeLogprobs(logits, sampled.id, *row.num_top);
  return sampled;
}

}  // namespace quire::kernels::sampling
