#include "kernels/sampling/row_kernels.h"

#include <array>
#include <cstring>

#include "kernels/sampling/exp.h"
#include "kernels/sampling/row_passes.h"

// Marks the functions that are inlined into one function per ISA (below).
#define QUIRE_INLINE inline __attribute__((always_inline))

namespace quire::kernels::sampling {
namespace {

constexpr int64_t kLanes = 16;

// This is a vector type of the compiler and not an array, so that lanes are folded in registers.
using FloatLanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;

QUIRE_INLINE float MaxOfBlock(const float* logits) {
  FloatLanes max = FloatLanes() + kMinusInfinity;
  for (int64_t i = 0; i < kRowBlock; i += kLanes) {
    FloatLanes x;
    std::memcpy(&x, logits + i, sizeof(x));
    max = x > max ? x : max;
  }
  FloatLanes other =
      __builtin_shufflevector(max, max, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  max = other > max ? other : max;
  other = __builtin_shufflevector(max, max, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3);
  max = other > max ? other : max;
  other = __builtin_shufflevector(max, max, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1);
  max = other > max ? other : max;
  return max[1] > max[0] ? max[1] : max[0];
}

// Fills `bits` with the noise of kRowBlock consecutive ids from `first_id`, a multiple of 4.
// Returns true if any element is at least `low`. Counters are stored as one array per word, so that
// one instruction works on several counters.
QUIRE_INLINE bool NoiseBody(const NoiseKey& key, int64_t first_id, uint32_t low, uint32_t* bits) {
  constexpr int64_t kCounters = kRowBlock / 4;
  std::array<uint32_t, kCounters> c0, c1, c2, c3;
  const PhiloxCounter base = NoiseCounter(key, static_cast<uint32_t>(first_id / 4));
  for (int64_t i = 0; i < kCounters; ++i) {
    c0[i] = base[0] + static_cast<uint32_t>(i);
    c1[i] = base[1];
    c2[i] = base[2];
    c3[i] = base[3];
  }
  PhiloxKey k = NoisePhiloxKey(key);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int64_t i = 0; i < kCounters; ++i) {
      const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * c0[i];
      const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * c2[i];
      c0[i] = static_cast<uint32_t>(product1 >> 32) ^ c1[i] ^ k[0];
      c1[i] = static_cast<uint32_t>(product1);
      c2[i] = static_cast<uint32_t>(product0 >> 32) ^ c3[i] ^ k[1];
      c3[i] = static_cast<uint32_t>(product0);
    }
    k[0] += kPhiloxWeyl0;
    k[1] += kPhiloxWeyl1;
  }
  for (int64_t i = 0; i < kCounters; ++i) {
    bits[4 * i] = c0[i];
    bits[4 * i + 1] = c1[i];
    bits[4 * i + 2] = c2[i];
    bits[4 * i + 3] = c3[i];
  }
  uint32_t num_reaching = 0;
  for (int64_t i = 0; i < kRowBlock; ++i) num_reaching += bits[i] >= low ? 1 : 0;
  return num_reaching > 0;
}

QUIRE_INLINE void MaximaBody(std::span<const float> logits, std::span<float> maxima) {
  const auto size = static_cast<int64_t>(logits.size());
  const int64_t num_whole = size / kRowBlock;
  for (int64_t block = 0; block < num_whole; ++block) {
    maxima[block] = MaxOfBlock(&logits[block * kRowBlock]);
  }
  if (num_whole * kRowBlock < size) {
    float max = kMinusInfinity;
    for (const float x : logits.subspan(num_whole * kRowBlock)) max = x > max ? x : max;
    maxima[num_whole] = max;
  }
}

QUIRE_INLINE double SumBody(std::span<const float> logits, float max, float temperature,
                            std::span<float> exponentials) {
  const auto size = static_cast<int64_t>(logits.size());
  std::array<double, kLanes> sums = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    float* const out = &exponentials[i];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      out[lane] = ExpOfNonPositive((logits[i + lane] - max) / temperature);
    }
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += RoundWeight(out[lane]);
  }
  double sum = 0.0;
  for (; i < size; ++i) {
    exponentials[i] = ExpOfNonPositive((logits[i] - max) / temperature);
    sum += RoundWeight(exponentials[i]);
  }
  for (const double lane : sums) sum += lane;
  return sum;
}

// The attribute target_clones is not used, because its resolvers run before a sanitizer is ready
// and clang 14 omits some clones.
#define QUIRE_DEFINE_ROW_KERNELS(name, attribute)                                         \
  attribute void Maxima##name(std::span<const float> logits, std::span<float> maxima) {   \
    MaximaBody(logits, maxima);                                                           \
  }                                                                                       \
  attribute double Sum##name(std::span<const float> logits, float max, float temperature, \
                             std::span<float> exponentials) {                             \
    return SumBody(logits, max, temperature, exponentials);                               \
  }                                                                                       \
  attribute bool Noise##name(const NoiseKey& key, int64_t first_id, uint32_t low,         \
                             uint32_t* bits) {                                            \
    return NoiseBody(key, first_id, low, bits);                                           \
  }                                                                                       \
  constexpr RowKernels k##name = {                                                        \
      .isa = #name, .maxima = Maxima##name, .sum = Sum##name, .noise = Noise##name}

QUIRE_DEFINE_ROW_KERNELS(Portable, );
#if defined(__x86_64__)
QUIRE_DEFINE_ROW_KERNELS(Avx2, __attribute__((target("avx2"))));
QUIRE_DEFINE_ROW_KERNELS(Avx512, __attribute__((target("avx512f"))));
#endif

std::vector<RowKernels> FindRowKernels() {
  std::vector<RowKernels> available;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) available.push_back(kAvx512);
  if (__builtin_cpu_supports("avx2")) available.push_back(kAvx2);
#endif
  available.push_back(kPortable);
  return available;
}

}  // namespace

const std::vector<RowKernels>& AvailableRowKernels() {
  static const auto& available = *new std::vector<RowKernels>(FindRowKernels());
  return available;
}

}  // namespace quire::kernels::sampling
