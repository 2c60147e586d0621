#pragma once

// The structs that host and device exchange for the op Sample. The host copies these structs as
// bytes.

#include <cstdint>

#include "kernels/ops/sample.h"

namespace quire::kernels::cuda {

// The parts of a slot, in words of 4 bytes. A slot has the data of one sequence.
struct SlotLayout {
  int32_t vocab_size = 0;

  constexpr int64_t num_set_words() const { return (int64_t{vocab_size} + 63) / 64 * 2; }
  constexpr int64_t biases() const { return 0; }                 // LogitBias
  constexpr int64_t allowed() const { return 2 * kMostBiases; }  // words of a TokenSet
  constexpr int64_t banned() const { return allowed() + num_set_words(); }
  // For each id: 0 if the window of the penalties lacks it, and else 1 more than how often it is in
  // the output.
  constexpr int64_t seen() const { return banned() + num_set_words(); }
  // A multiple of 2, because the words of sets have 8 bytes.
  constexpr int64_t num_words() const { return (seen() + vocab_size + 1) / 2 * 2; }
};

// One SampleRow. Every byte is a member's, so that rows can be compared as bytes.
struct DeviceSampleRow {
  uint64_t seed = 0;
  int64_t position = 0;
  double min_p_depth = -1.0;  // how far below the best a kept logit may be; negative: no min_p
  float temperature = 0.0f, typical_p = 1.0f, top_p = 1.0f;
  int32_t top_k = 0;
  float repetition_penalty = 1.0f, frequency_penalty = 0.0f, presence_penalty = 0.0f;
  int32_t row = 0;
  int32_t given = -1;
  int32_t draw = -1;
  int32_t previous = -1;
  int32_t num_top = -1;  // -1: no log-probabilities
  // The slot has what the next four members refer to. -1: they are 0.
  int32_t slot = -1;
  int32_t num_biases = 0;
  int32_t has_penalties = 0, has_allowed = 0, has_banned = 0;
  int16_t bans_end_ids = 0, wants_rank = 0;
};
static_assert(sizeof(DeviceSampleRow) == 96);

struct DeviceSampleResult {
  enum Status : int32_t { kOk, kNotFinite, kNoneLeft };
  int32_t status = kOk;
  int32_t id = 0;             // drawn or given
  float max = 0.0f;           // of the row's logits
  float chosen_logit = 0.0f;  // of `id`; -infinity if the row lacks it
  int64_t sum = 0;            // of e^(logit - max) over the row, in units of 2^-35
  int32_t num_top = 0;
  int32_t rank = 0;  // of `id`, as in PositionLogprobs
};

}  // namespace quire::kernels::cuda
