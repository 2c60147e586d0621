#pragma once

// The slopes of ALiBi (arXiv:2108.12409): head h adds slopes[h] * (key - query) to its scores.
//
// Let n be the largest power of two within num_heads. Head h < n has the slope 2^(-bias_max * (h +
// 1) / n). Head h >= n has the slope 2^(-bias_max * (2 * (h - n) + 1) / (2 * n)). So the slopes are
// not monotone in h. The result covers all heads of a layer; a tensor-parallel rank takes the slice
// of its own heads.

#include <cstdint>
#include <vector>

namespace quire::kernels {

// `bias_max` is the setting alibi_bias_max of an MPT model. All other models use 8.
std::vector<float> AlibiSlopes(int32_t num_heads, double bias_max = 8.0);

}  // namespace quire::kernels
