#pragma once

// The structs that host and device exchange for the op Sample. The host copies these structs as
// bytes.

#include <cstdint>

#include "kernels/ops/sample.h"

namespace quire::kernels::cuda {

// A part of SampleKernelParams::data.
struct DataRange {
  int32_t begin = 0;  // in words of 4 bytes
  int32_t size = 0;   // in elements
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
  DataRange seen;        // SeenToken; size -1: no penalties
  DataRange biases;      // LogitBias
  DataRange allowed;     // words of a TokenSet; empty: all ids
  DataRange banned;      // words of a TokenSet
  int32_t bans_end_ids = 0;
  int32_t unused = 0;
};
static_assert(sizeof(DeviceSampleRow) == 112);

// An id that occurs in the window of the penalties.
struct SeenToken {
  int32_t id = 0;
  int32_t in_output = 0;  // how often
};

struct DeviceSampleResult {
  enum Status : int32_t { kOk, kNotFinite, kNoneLeft };
  int32_t status = kOk;
  int32_t id = 0;             // drawn or given
  float max = 0.0f;           // of the row's logits
  float chosen_logit = 0.0f;  // of `id`; -infinity if the row lacks it
  int64_t sum = 0;            // of e^(logit - max) over the row, in units of 2^-35
  int32_t num_top = 0;
  int32_t unused = 0;
};

}  // namespace quire::kernels::cuda
