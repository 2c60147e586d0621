#pragma once

// The slopes of ALiBi (arXiv:2108.12409): head h adds slopes[h] * (key - query) to its scores.
//
// The first n heads, n the largest power of two within num_heads, have the slopes 2^(-bias_max (h +
// 1) / n); the others have every second slope of the same row for 2n. Not monotone in h. The slopes
// belong to all heads of a layer: a tensor-parallel rank takes its slice of them.

#include <cstdint>
#include <vector>

namespace quire::kernels {

// `bias_max` is MPT's alibi_bias_max; 8 everywhere else.
std::vector<float> AlibiSlopes(int32_t num_heads, double bias_max = 8.0);

}  // namespace quire::kernels
