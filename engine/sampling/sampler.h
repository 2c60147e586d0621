#pragma once

// Draws a token from a row of logits, or computes the log-probability of a given token.
//
// The stages are, in this order: penalties, bias, allowed and banned ids, temperature, top_k,
// typical_p, top_p, min_p. Ids without a piece are always banned, and ids that end the output are
// banned before min_tokens. Each cut sees the distribution that the cuts before it left, normalised
// to sum to 1. The token is then the argmax over the kept ids of
//   logit / temperature + Gumbel(seed, output position, id)        (gumbel.h)
// At temperature 0 the cuts are ignored. The token is then the id with the largest logit after the
// stages before temperature, and the lowest such id if several are equal. The token of a row
// depends on that row alone, not on the batch, on threads or on order.

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

// The work on one row of logits: to draw a token, or to compute the log-probability of a given
// token. For a given token only `logits`, `given` and `num_top` are read.
struct SampleRow {
  std::span<const float> logits;  // at most vocab_size, as the model gave them; only read
  int32_t given = -1;             // -1: the token is drawn
  // How many of the likeliest tokens to list beside the row's token. Without a value, a drawn token
  // gets no log-probability.
  std::optional<int32_t> num_top;
  const Request* request = nullptr;
  uint64_t seed = 0;     // the seed of the request plus the index of the sample
  int64_t position = 0;  // how many tokens the sequence has generated
  // Read only for penalties.
  std::span<const int32_t> tokens;  // the prompt, then generated tokens
  int64_t prompt_len = 0;
};

struct SampledRow {
  int32_t id = -1;
  std::optional<PositionLogprobs> logprobs;  // if the row has num_top
};

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

  // Handles one row. Returns Internal if the largest logit of the row is not finite, which is a
  // fault of the model or the device. Returns InvalidArgument if the allowed and banned ids of the
  // request leave no id to draw. Each of these errors ends only that request.
  absl::StatusOr<SampledRow> Sample(const SampleRow& row);

  // Handles all rows; results[i] belongs to rows[i]. Without `parallel_for`, runs on the thread of
  // the caller, with the same results.
  void Sample(std::span<const SampleRow> rows, const ParallelFor& parallel_for,
              std::vector<absl::StatusOr<SampledRow>>& results);

 private:
  struct Lane;  // the scratch of one row at a time
  absl::StatusOr<SampledRow> SampleWith(Lane& lane, const SampleRow& row) const;
  // Returns the logits to draw from.
  std::span<const float> EditLogits(Lane& lane, const SampleRow& row) const;

  const int32_t vocab_size_;
  int32_t num_drawable_;        // this id and all later ones have no piece
  std::vector<int32_t> holes_;  // ids below num_drawable_ without a piece
  const std::vector<int32_t> end_ids_;
  std::vector<Lane> lanes_;
};

}  // namespace quire::engine
