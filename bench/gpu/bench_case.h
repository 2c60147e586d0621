#pragma once

// The cases of the GPU benchmark: their shapes, their work, and their predicted times.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace quire::bench {

struct Work {
  double bytes = 0.0;  // bytes that must cross the memory bus
  double flops = 0.0;
};

// The amounts that the device can move and compute in one second.
struct Ceilings {
  double read = 0.0;  // bytes
  double copy = 0.0;  // bytes read plus bytes written
  double gemm = 0.0;  // bf16 FLOPs
};
// The ceilings of an H200, used until the ceilings are measured. They are published figures for
// copies and for GEMMs of random numbers on an H200.
inline constexpr Ceilings kAssumedH200 = {.read = 4.3e12, .copy = 4.3e12, .gemm = 7.8e14};

// The share of the ceilings that a kernel is predicted to reach, and the cost of its launch.
struct Expectation {
  double of_read = 0.9;
  double of_gemm = 0.9;
  double launch_seconds = 3e-6;
};
// The mma.sync kernels have the design of FlashAttention-2. On an H100, FlashAttention-2 reaches
// 333 TFLOP/s (causal, head_dim 128) and GEMMs reach 770 TFLOP/s: a share of 0.43. The launch cost
// includes the launch of the merge after the kernel.
inline constexpr Expectation kAttentionExpectation = {.of_gemm = 0.43, .launch_seconds = 6e-6};
// The wgmma kernel has the design of FlashAttention-3 (arXiv:2407.08608), which reaches 550 to 650
// TFLOP/s: a share of 0.71 to 0.84. docs/evidence/gpu-predictions.md says what may cost the
// difference.
inline constexpr Expectation kWgmmaExpectation = {.of_gemm = 0.65, .launch_seconds = 6e-6};

// Keys and values are in (-1, 1), and queries in (-12, 12). The scores then have a standard
// deviation of 4, so a few keys decide the output. A key that the kernel misses or reads twice
// therefore changes the output.
inline constexpr float kCacheAmplitude = 1.0f, kQueryAmplitude = 12.0f;
// No key is longer than this, in the longest cache by 8 standard deviations.
inline float LargestKeyNorm(int32_t head_dim) {
  return 0.75f * kCacheAmplitude * std::sqrt(static_cast<float>(head_dim));
}

// Each item that far keys make short still costs its start, and ranges are not equally long.
inline constexpr Expectation kSkipExpectation = {
    .of_read = 0.8, .of_gemm = 0.43, .launch_seconds = 6e-6};
// An estimated 2 us of partial results cross the L2 cache.
inline constexpr Expectation kTogetherExpectation = {.of_gemm = 0.43, .launch_seconds = 8e-6};
// With an fp8 cache, a byte of the cache takes three times as many instructions, so less of the
// read bandwidth is expected. Prefills also widen what they multiply, each warp for itself where
// items have at most 64 rows (docs/evidence/gpu-predictions.md).
inline constexpr Expectation kFp8Expectation = {
    .of_read = 0.8, .of_gemm = 0.375, .launch_seconds = 6e-6};
inline constexpr Expectation kFp8NarrowExpectation = {
    .of_read = 0.8, .of_gemm = 0.23, .launch_seconds = 6e-6};
inline constexpr Expectation kFp8WgmmaExpectation = {
    .of_read = 0.8, .of_gemm = 0.55, .launch_seconds = 6e-6};

// The packed GEMM is predicted to be limited by the instructions that it issues, and with 8 or 16
// tokens by the activations that it reads from L2 (docs/evidence/gpu-predictions.md).
constexpr Expectation PackedExpectation(int64_t tokens) {
  return {.of_read = tokens == 1 ? 0.75 : tokens <= 8 ? 0.65 : tokens <= 16 ? 0.45 : 0.4};
}

// Six kernels run for a mixture, at 2.5 us each. Up to eight rows of an expert share a tile if the
// experts are packed. The products of 16-bit experts reach what tiles of mma.sync read from L2: 64
// x 128 of them 235 of 780 TFLOP/s, and 75 % of what 128 x 256 do, for experts of 128 rows or more.
// Those on wgmma, whose loads never wait for products, reach 85 % of it, with up to 192 x 256.
constexpr Expectation MixtureExpectation(int64_t tokens, int64_t rows_of_expert, bool wgmma) {
  Expectation expectation = {.of_read = PackedExpectation(std::min<int64_t>(tokens, 8)).of_read,
                             .of_gemm = rows_of_expert >= 128 ? 0.45 : 0.3,
                             .launch_seconds = 15e-6};
  if (wgmma) {
    constexpr double kL2Read = 5.5e12;  // bytes a second, which others report of an H100
    const auto rows = static_cast<double>(std::min<int64_t>(rows_of_expert, 192));
    expectation.of_gemm = 0.85 * kL2Read * 256.0 * rows / (rows + 256.0) / kAssumedH200.gemm;
  }
  return expectation;
}

double PredictedSeconds(const Work& work, const Ceilings& ceilings, const Expectation& expectation);
// Returns the least time that the ceilings allow.
double FloorSeconds(const Work& work, const Ceilings& ceilings);

struct AttentionCase {
  std::string suite;  // decode, ragged, mixed, shared, skip or prefill
  std::vector<int32_t> context_lens, query_lens;
  int32_t num_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t block_size = 16;
  bool alibi = false;
  bool wgmma = false;  // kernels::cuda::MatrixInstruction::kWgmma
  bool fp8 = false;    // a cache of e4m3
  // The first keys of all sequences are in the same blocks; a multiple of block_size and of
  // AttentionPattern::kTileKeys.
  int32_t prefix = 0;
  bool together = false;  // decodes read the prefix together
  bool skips =
      false;  // far keys (kernels/cuda/attention/attn_horizon.cuh); only decodes with ALiBi
  // A block of the cache has the keys and values of this many layers, as an engine's has. The case
  // is the attention of the first.
  int32_t layers = 1;
  // The merge starts when attention has ended, and not before (LaunchConfig::overlaps_previous).
  bool apart = false;

  int64_t cache_element_bytes() const { return fp8 ? 1 : 2; }
};
// Returns a name such as "decode 64x8192 32/8 d128 bs16 alibi". Sequences are written as
// count x query_len @ context_len, without the query_len where it is 1. " wgmma" and " fp8" are
// at the end, or " prefix 4096 together", " skipping", " of 32 layers" or " apart".
std::string Name(const AttentionCase& c);
// Returns the fields of the shape, for another program that measures the same case.
nlohmann::ordered_json ShapeToJson(const AttentionCase& c);
// Returns what the kernel of a case is expected to reach.
const Expectation& ExpectationOf(const AttentionCase& c);
// Returns the work of a case. The bytes count keys and values (once for each sequence, but a prefix
// that is read together once for each 64 rows, and without the far keys of queries of usual length
// if these are skipped), queries and outputs. The FLOPs count only the pairs
// of a query and a key that the causal mask keeps.
Work WorkOf(const AttentionCase& c);
int64_t NumBlocks(const AttentionCase& c);
// Returns the keys and values of a block, of one layer.
int64_t BlockElements(const AttentionCase& c);
// Returns the bytes of the cache that holds the case's blocks.
int64_t KvBytes(const AttentionCase& c);

enum class Size {
  kFull,  // for a GPU
  kTiny,  // small enough to run under the emulator in seconds
};

// Cases that differ only in block size, ALiBi, kernel, type of cache and in how they read a prefix.
// They are measured in turn, so that a change of the device over time affects all of them equally.
using AttentionGroup = std::vector<AttentionCase>;
// Returns the groups of a size. The most important cases come first.
std::vector<AttentionGroup> AttentionGroups(Size size);

}  // namespace quire::bench
