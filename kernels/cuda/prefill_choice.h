#pragma once

// Which kernel computes the attention of chunks of prompts.

#include <cstdint>

namespace quire::kernels::cuda {

// The kernel of sequences with more than one query token and more than 64 rows (attention_plan.h).
// All other sequences run on that of paged_attention.cuh.
enum class PrefillAttention : uint8_t {
  kMma,    // paged_attention.cuh
  kWgmma,  // prefill_attention.cuh where it has an instance, else as kMma; compute capability 9.0
};

}  // namespace quire::kernels::cuda
