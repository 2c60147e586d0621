#pragma once

// What the GPU benchmark measures: shapes, the work they cost, and what they should take.

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace quire::bench {

struct Work {
  double bytes = 0.0;  // that must cross the memory bus
  double flops = 0.0;
};

// What the device can do, each in units a second.
struct Ceilings {
  double read = 0.0;  // bytes
  double copy = 0.0;  // bytes, those read and those written
  double gemm = 0.0;  // bf16 FLOPs
};
// Of an H200, where nothing has been measured: what others report for copies and for GEMMs of
// random numbers on it. A prediction made from them says so.
inline constexpr Ceilings kAssumedH200 = {.read = 4.3e12, .copy = 4.3e12, .gemm = 7.8e14};

// The share of the ceilings that a kernel is predicted to reach, and what it costs to begin.
struct Expectation {
  double of_read = 0.9;
  double of_gemm = 0.9;
  double launch_seconds = 3e-6;
};
// FlashAttention-2, whose design the mma.sync kernels share, reaches 333 TFLOP/s where GEMMs reach
// 770 (an H100, causal, head_dim 128); an attention has a merge behind it.
inline constexpr Expectation kAttentionExpectation = {.of_gemm = 0.43, .launch_seconds = 6e-6};

double PredictedSeconds(const Work& work, const Ceilings& ceilings, const Expectation& expectation);
// The least time that the ceilings allow.
double FloorSeconds(const Work& work, const Ceilings& ceilings);

struct AttentionCase {
  std::string suite;  // decode, ragged or prefill
  std::vector<int32_t> context_lens, query_lens;
  int32_t num_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t block_size = 16;
  bool alibi = false;
};
// "decode 64x8192 32/8 d128 bs16 alibi"; sequences as count x query_len @ context_len, the
// query_len left out where it is 1.
std::string Name(const AttentionCase& c);
// The fields of the shape, for whoever measures the same.
nlohmann::ordered_json ShapeToJson(const AttentionCase& c);
// Keys and values once for each sequence, queries and outputs; the scores that causality leaves.
Work WorkOf(const AttentionCase& c);
int64_t NumBlocks(const AttentionCase& c);
// Of the cache that holds the case's blocks.
int64_t KvElements(const AttentionCase& c);

enum class Size {
  kFull,  // for a GPU
  kTiny,  // the same code in seconds under the emulator
};

// Cases that are measured in turn, so that what differs between them is not the moment: block
// sizes, and ALiBi on and off. Those that matter most come first.
using AttentionGroup = std::vector<AttentionCase>;
std::vector<AttentionGroup> AttentionGroups(Size size);

}  // namespace quire::bench
