#include "kernels/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/check.h"
#include "kernels/sampling/kept_set.h"
#include "kernels/sampling/logit_edits.h"
#include "kernels/sampling/logprobs.h"
#include "kernels/sampling/min_p.h"
#include "kernels/sampling/penalties.h"
#include "kernels/sampling/row_passes.h"
#include "kernels/sampling/top_k_top_p.h"
#include "kernels/sampling/typical_p.h"

namespace quire::kernels::sampling {

absl::Status NotFinite(float max) {
  return absl::InternalError(absl::StrFormat("logits: want a finite maximum, got %f", max));
}

absl::Status NoneLeft() {
  return absl::InvalidArgumentError(
      "sampling.allowed_token_ids: no id is left to draw: each one ends the output before "
      "stop.min_tokens, has no piece in the vocabulary, or has no probability");
}

void RunInOrder(int64_t n, absl::FunctionRef<void(int64_t item, int lane)> body) {
  for (int64_t item = 0; item < n; ++item) body(item, 0);
}

// At the end of the vocabulary, ids without a piece (padding in many models) only shorten the row.
// Any other id without a piece is a hole and costs a copy of the row.
DrawableIds::DrawableIds(const SamplerSpec& spec)
    : end(spec.vocab_size), holes(spec.without_piece) {
  for (; !holes.empty() && holes.back() == end - 1; holes.pop_back()) --end;
}

struct Sampler::Lane {
  explicit Lane(int32_t vocab_size) : penalties(vocab_size) {}

  std::vector<float> maxima;
  std::vector<float> edited;    // a copy of the row, when its logits are changed
  std::vector<int32_t> tokens;  // a copy of the tokens, when the last one was unknown
  Penalties penalties;
  KeptSet kept;
  TypicalP typical_p;
};

Sampler::Sampler(const SamplerSpec& spec, int num_lanes)
    : vocab_size_(spec.vocab_size), drawable_(spec), end_ids_(spec.end_ids) {
  lanes_.reserve(num_lanes);
  for (int i = 0; i < num_lanes; ++i) lanes_.emplace_back(vocab_size_);
}

Sampler::~Sampler() = default;

void Sampler::Run(const SampleArgs& args, ParallelFor parallel_for) {
  const auto num_ids = static_cast<size_t>(args.logits.dim(1));
  const std::span<int32_t> drawn(args.drawn.data<int32_t>(),
                                 static_cast<size_t>(args.drawn.dim(0)));
  QUIRE_CHECK(num_run_ - num_taken_ < 2) << "the results of two calls have not been taken";
  std::vector<absl::StatusOr<SampledRow>>& results = results_[num_run_++ % 2];
  results.assign(args.rows.size(), SampledRow());
  parallel_for(std::ssize(args.rows), [&](int64_t i, int lane) {
    const SampleRow& row = args.rows[i];
    const std::span<const float> logits(args.logits.data<const float>() + row.row * num_ids,
                                        num_ids);
    results[i] = Sample(logits, row, row.previous < 0 ? -1 : drawn[row.previous], lane);
  });
  for (size_t i = 0; i < args.rows.size(); ++i) {
    if (args.rows[i].draws()) drawn[args.rows[i].draw] = results[i].ok() ? results[i]->id : 0;
  }
}

void Sampler::Take(std::vector<absl::StatusOr<SampledRow>>& results) {
  QUIRE_CHECK(num_taken_ < num_run_) << "no call has results to take";
  std::swap(results, results_[num_taken_++ % 2]);
}

// Returns the row itself, without its padding, when no logit changes.
std::span<const float> Sampler::EditLogits(Lane& lane, std::span<const float> logits,
                                           const SampleRow& row, int32_t previous_id) const {
  const std::span<const float> drawable =
      logits.first(static_cast<size_t>(std::min<int64_t>(drawable_.end, std::ssize(logits))));
  const bool restricts = row.allowed != nullptr && !row.allowed->empty();
  const bool has_penalties = row.params.has_penalties();
  if (!has_penalties && row.biases.empty() && !restricts && row.banned == nullptr &&
      !row.bans_end_ids && drawable_.holes.empty()) {
    return drawable;
  }
  lane.edited.assign(drawable.begin(), drawable.end());
  if (has_penalties) {
    std::span<const int32_t> tokens = row.tokens;
    if (previous_id >= 0) {
      lane.tokens.assign(tokens.begin(), tokens.end());
      lane.tokens.push_back(previous_id);
      tokens = lane.tokens;
    }
    QUIRE_CHECK(std::ssize(tokens) == row.prompt_len + row.position) << "tokens are missing";
    lane.penalties.Apply(row.params, tokens, row.prompt_len, lane.edited);
  }
  ApplyLogitBias(row.biases, lane.edited);
  if (restricts) ApplyAllowedIds(*row.allowed, lane.edited);
  Ban(drawable_.holes, lane.edited);
  if (row.bans_end_ids) Ban(end_ids_, lane.edited);
  if (row.banned != nullptr) Ban(*row.banned, lane.edited);
  return lane.edited;
}

absl::StatusOr<SampledRow> Sampler::Sample(std::span<const float> logits, const SampleRow& row,
                                           int32_t previous_id, int lane_index) {
  Lane& lane = lanes_[lane_index];
  QUIRE_CHECK(std::ssize(logits) <= vocab_size_) << "logits: got " << logits.size();
  lane.maxima.resize(NumRowBlocks(std::ssize(logits)));
  BlockMaxima(logits, lane.maxima);
  if (const float max = *std::max_element(lane.maxima.begin(), lane.maxima.end());
      !std::isfinite(max)) {
    return NotFinite(max);
  }
  const auto logprobs = [&](int32_t id) {
    PositionLogprobs of_row = ComputeLogprobs(logits, id, row.num_top.value_or(0));
    if (row.wants_rank) of_row.rank = RankOf(logits, id);
    return of_row;
  };
  if (row.given >= 0) return SampledRow{.id = row.given, .logprobs = logprobs(row.given)};
  const std::span<const float> edited = EditLogits(lane, logits, row, previous_id);
  lane.maxima.resize(NumRowBlocks(std::ssize(edited)));
  if (edited.data() != logits.data() || edited.size() != logits.size()) {
    BlockMaxima(edited, lane.maxima);
  }

  SampledRow sampled = {.id = ArgMax(edited, lane.maxima)};
  if (sampled.id < 0) {
    return NoneLeft();
  }
  if (row.num_best > 0) {
    return SampledRow{.logprobs =
                          PositionLogprobs{.top = ComputeBest(logits, edited, row.num_best)}};
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
  if (row.num_top) sampled.logprobs = logprobs(sampled.id);
  return sampled;
}

}  // namespace quire::kernels::sampling
