#pragma once

// Draws a token from logits.
//
// The stages, in this order: penalties, bias, allowed ids (and the ban of ending ids before
// min_tokens, and of ids without a piece always), temperature, top_k, typical_p, top_p, min_p. Each
// cut sees the distribution that the cuts before it left, normalised to sum to 1. Then token =
// argmax over the kept ids of
//   logit / temperature + Gumbel(seed, output position, id)        (gumbel.h)
// At temperature 0 it is the largest logit after the edits, the lowest id among equals; cuts are
// ignored. A row's token depends on that row alone: not on the batch, on threads or on order.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/request/request.h"
#include "engine/sampling/kept_set.h"
#include "engine/sampling/penalties.h"
#include "engine/sampling/typical_p.h"

namespace quire::engine {

// One token to draw. The position of its noise is tokens.size() - prompt_len.
struct SampleRow {
  std::span<const float> logits;  // at most vocab_size, as the model gave them; only read
  const Request* request = nullptr;
  uint64_t seed = 0;                // the request's, plus the sample's index
  std::span<const int32_t> tokens;  // the prompt, then generated tokens
  int64_t prompt_len = 0;
};

struct SampledRow {
  int32_t id = -1;
  std::optional<PositionLogprobs> logprobs;  // when the request asked for top_logprobs
};

// Calls its second argument with 0 .. n - 1, perhaps from several threads, and returns after all.
using ParallelFor = std::function<void(int64_t n, const std::function<void(int64_t)>&)>;

// Not thread-safe. No allocation per row after warm-up, but for log-probabilities.
class Sampler {
 public:
  // `vocab_size` is the model's, `end_ids` are the tokenizer's. `num_lanes`: the most rows
  // processed at once. `without_piece`, ascending: ids that are never drawn, but have their share
  // of the log-probabilities.
  Sampler(int32_t vocab_size, std::vector<int32_t> end_ids, int32_t num_lanes = 1,
          std::vector<int32_t> without_piece = {});
  ~Sampler();

  // Internal: no logit of the row is above -infinity, or one is +infinity (the model's or the
  // device's fault). InvalidArgument: the request's allowed and banned ids leave none to draw.
  // Either error ends only that request.
  absl::StatusOr<SampledRow> Sample(const SampleRow& row);

  // All rows, result i of row i. Without `parallel_for`, on this thread; the results are the same.
  void Sample(std::span<const SampleRow> rows, const ParallelFor& parallel_for,
              std::vector<absl::StatusOr<SampledRow>>& results);

 private:
  struct Lane;  // the scratch of one row at a time
  absl::StatusOr<SampledRow> SampleWith(Lane& lane, const SampleRow& row) const;
  // The logits to draw from.
  std::span<const float> EditLogits(Lane& lane, const SampleRow& row) const;

  const int32_t vocab_size_;
  int32_t num_drawable_;        // this id and all later ones have no piece
  std::vector<int32_t> holes_;  // ids before it without a piece
  const std::vector<int32_t> end_ids_;
  std::vector<Lane> lanes_;
};

}  // namespace quire::engine
