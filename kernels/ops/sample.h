#pragma once

// Draws a token from each row of logits, computes the log-probability of a given token, or lists
// the best tokens of the row.
//
// The stages of a draw are, in this order: penalties, bias, allowed and banned ids, temperature,
// top_k, typical_p, top_p, min_p. Each cut sees the distribution that the cuts before it left,
// normalised to sum to 1. The token is then the argmax over the kept ids of
//   logit / temperature + Gumbel(seed, output position, id)        (sampling/gumbel.h)
// At temperature 0 the cuts are ignored. The token is then the id with the largest logit after the
// stages before temperature, and the lowest such id if several are equal.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/ops/update_table.h"
#include "kernels/tensor_view.h"
#include "kernels/token_set.h"

namespace quire::kernels {

struct DrawParams {
  float temperature = 1.0f;         // 0: greedy
  int32_t top_k = 0;                // 0: all
  float typical_p = 1.0f;           // (0, 1]; 1: off (arXiv:2202.00666)
  float top_p = 1.0f;               // (0, 1]; 1: off (arXiv:1904.09751)
  float min_p = 0.0f;               // [0, 1]; 0: off (arXiv:2407.01082)
  float presence_penalty = 0.0f;    // once per token that occurs in the output
  float frequency_penalty = 0.0f;   // per occurrence in the output
  float repetition_penalty = 1.0f;  // above 0; 1: off; counts the prompt too (arXiv:1909.05858)
  int32_t penalty_last_n = -1;      // how many last tokens penalties count; -1: all, 0: none

  // Returns true if any penalty would change a logit.
  bool has_penalties() const {
    return penalty_last_n != 0 &&
           (repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f);
  }
};

struct LogitBias {
  int32_t token_id = 0;
  float bias = 0.0f;  // added to the logit
};

// The work on one row of logits: to draw a token, to compute the log-probability of a given token,
// or to list the best tokens. For a given token only `row`, `given`, `num_top` and `wants_rank` are
// read. To list the best, only `row`, `num_best`, `allowed`, `banned` and `bans_end_ids` are read.
struct SampleRow {
  int64_t row = 0;     // a row of SampleArgs::logits; works may share a row
  int32_t given = -1;  // -1: the token is drawn
  int32_t draw = -1;   // the element of SampleArgs::drawn that becomes the drawn id
  // The number of likeliest tokens to list in addition to the row's token. If unset, a drawn token
  // gets no log-probability.
  std::optional<int32_t> num_top;
  bool wants_rank = false;  // PositionLogprobs::rank is filled
  // If not 0, no token is drawn: the result has this number of likeliest ids that may be drawn, or
  // all of them if there are fewer. At most kMostBest. The CUDA backend has no such list.
  int32_t num_best = 0;
  DrawParams params;
  uint64_t seed = 0;     // the seed of the request plus the index of the sample
  int64_t position = 0;  // how many tokens the sequence has generated
  // Rows of one sequence have equal `biases`, `allowed` and prompts, and `banned` is one set or
  // null. From call to call, `tokens` only grow, so a backend may keep what it has of them. -1: of
  // no such sequence.
  int64_t sequence = -1;
  std::span<const LogitBias> biases;  // several for one id add up, in order; at most kMostBiases
  const TokenSet* allowed = nullptr;  // null or empty: all ids
  const TokenSet* banned = nullptr;   // null: no id
  bool bans_end_ids = false;          // the tokenizer's end ids are banned too
  // Read only for penalties.
  std::span<const int32_t> tokens;  // the prompt, then generated tokens
  int64_t prompt_len = 0;
  // The element of SampleArgs::drawn that holds the last generated token, if `tokens` lacks it;
  // else -1.
  int32_t previous = -1;

  bool draws() const { return given < 0 && num_best == 0; }
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;  // natural log, as the model gave it (temperature 1, no penalties)
};

// The log-probabilities at one position: of the token there, and of the most likely tokens, best
// first.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
  // The place of `chosen` among all ids of the row, from 1: of equally likely ids the lower comes
  // first, as in `top`. 0: not asked for.
  int32_t rank = 0;
};

// The most biases of a row.
inline constexpr int64_t kMostBiases = 1024;
// The most tokens that SampleRow::num_top may ask for.
inline constexpr int32_t kMostTopLogprobs = 20;
// The most tokens that SampleRow::num_best may ask for.
inline constexpr int32_t kMostBest = 1056;

struct SampledRow {
  int32_t id = -1;
  // If the row has num_top. If it has num_best, `top` lists the best ids, best first, of equally
  // likely ids the lower, and `chosen` is not set.
  std::optional<PositionLogprobs> logprobs;
};

struct SamplerSpec {
  int32_t vocab_size = 0;        // of the model
  std::vector<int32_t> end_ids;  // of the tokenizer
  // The ids without a piece, ascending. They are never drawn, but the softmax behind the
  // log-probabilities includes them.
  std::vector<int32_t> without_piece;
  int64_t max_rows = 0;   // the most rows of logits in a call
  int64_t max_draws = 0;  // the elements of SampleArgs::drawn
};

// Changes of a table in the backend's memory, for the op UpdateTable.
struct TableUpdate {
  TensorView table;
  std::span<const TableChange> changes;
};

// The vocabulary and the memory for sampling on one backend. Backend::PrepareSampler makes it. Only
// the op of that backend reads it.
class PreparedSampler {
 public:
  virtual ~PreparedSampler() = default;

  // Called before each call of the op, with the same rows. The caller enqueues the returned update
  // before the op, in the one upload that a step has. The update is valid until the next call. When
  // this is called, only the last call of the op may have results that are not taken. If the op is
  // not called, the caller waits for the enqueued work before the next step.
  // A backend whose op reads the rows themselves returns no update.
  virtual absl::StatusOr<TableUpdate> Prepare(std::span<const SampleRow> /*rows*/) {
    return TableUpdate();
  }
  // Overwrites `results` with those of the oldest call that has not been taken. results[i] is that
  // of rows[i]. It is Internal if the largest logit of the row is not finite, which is a fault of
  // the model or the device. It is InvalidArgument if no id is left to draw. The op must have run,
  // and at most two calls may wait to be taken.
  virtual void Take(std::vector<absl::StatusOr<SampledRow>>& results) = 0;
};

// `rows` and all that they refer to need not outlive the call of the op.
struct SampleArgs {
  TensorView logits;                // [num_rows, num_ids]  f32, num_ids at most vocab_size
  std::span<const SampleRow> rows;  // in memory of the host
  // [max_draws]  int32. The op reads the previous call's tokens and writes this call's. A draw that
  // fails writes 0.
  TensorView drawn;
  PreparedSampler* sampler = nullptr;
};
absl::Status Validate(const SampleArgs& args);

}  // namespace quire::kernels
