#pragma once

// The inner loops of row_passes.h, compiled once for each ISA. All ISAs give the same bits, because
// the build forbids fused multiply-adds, and every ISA adds the lanes in the same order.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling/gumbel.h"

namespace quire::kernels::sampling {

struct RowKernels {
  const char* isa;
  void (*maxima)(std::span<const float> logits, std::span<float> maxima);  // BlockMaxima
  double (*sum)(std::span<const float> logits, float max, float temperature,
                std::span<float> exponentials);  // SumOfWeights
  // Fills `bits` with the noise of kRowBlock consecutive ids from `first_id`, a multiple of 4.
  // Returns true if any element of `bits` is at least `low`.
  bool (*noise)(const NoiseKey& key, int64_t first_id, uint32_t low, uint32_t* bits);
};

// Returns the sets of kernels that this machine can run, the fastest first.
const std::vector<RowKernels>& AvailableRowKernels();

}  // namespace quire::kernels::sampling
