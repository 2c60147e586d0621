#pragma once

// AlibiSlopes returns the slopes of ALiBi (arXiv:2108.12409). Head h adds slopes[h] * (key - query)
// to its attention scores, where key and query are positions.
//
// Let n be the largest power of two that is at most num_heads.
//   h < n:   slopes[h] = 2^(-bias_max * (h + 1) / n)
//   h >= n:  slopes[h] = 2^(-bias_max * (2 * (h - n) + 1) / (2 * n))
// If num_heads is not a power of two, the slopes are therefore not monotone in h. The result covers
// all heads of a layer. A tensor-parallel rank takes the slice of its own heads.

#include <cstdint>
#include <vector>

namespace quire::kernels {

// `bias_max` is the setting alibi_bias_max of an MPT model. All other models use 8.
std::vector<float> AlibiSlopes(int32_t num_heads, double bias_max = 8.0);

}  // namespace quire::kernels
