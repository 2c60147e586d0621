#include "kernels/quant/quantize_k.h"

#include <limits>

#include "kernels/quant/quantize_search.h"

namespace quire::kernels::quantize_internal {
namespace {

constexpr int kSubBlocks = 8;
constexpr int kRounds = 2;  // further rounds gain less than 0.1 %
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns the d with which the numbers code * d, for integer codes in [0, largest_code], come
// nearest to the scales s. `importance` weights the squared distances. If the scales came from a
// block, the numbers code * d equal them, up to rounding.
template <int N>
float ScaleOfScales(const float* s, const float* importance, int largest_code) {
  const float largest = *std::max_element(s, s + N);
  if (largest == 0.0f) return 0.0f;
  float least = kInfinity, best = 0.0f, rounding = 0.0f;
  for (int code = largest_code; code > 0; --code) {
    const float inverse = static_cast<float>(code) / largest;
    Lanes codes[N / kLanes], qq{}, sq{}, error{};
    for (int i = 0; i < N; i += kLanes) {
      const Lanes scales = Load(s + i);
      const Lanes q = NearestCodes(scales * inverse, {0.0f, static_cast<float>(largest_code)});
      const Lanes weighted = Load(importance + i) * q;
      codes[i / kLanes] = q;
      qq += weighted * q;
      sq += weighted * scales;
    }
    const CodeSums sums = {.qq = Total(qq), .xq = Total(sq)};
    const float d = sums.qq > 0.0f ? sums.scale() : 1.0f / inverse;
    for (int i = 0; i < N; i += kLanes) {
      const Lanes distance = Load(s + i) - codes[i / kLanes] * d;
      error += Load(importance + i) * distance * distance;
    }
    // Multiplying all codes by one number and dividing d by it leaves the exact error unchanged, so
    // a tiny gain may be mere rounding. An error counts as smaller only if the gain exceeds the
    // rounding error.
    if (code == largest_code) rounding = sums.explained() * (kRounding * kRounding);
    if (Total(error) + rounding < least) {
      least = Total(error);
      best = d;
    }
  }
  return best;
}

// Returns the code nearest to scale / d.
int ScaleCode(float scale, float d, int largest_code) {
  return static_cast<int>(std::min(scale * Inverse(d), static_cast<float>(largest_code)) + 0.5f);
}

constexpr CodeRange kRange4{0.0f, 15.0f};
constexpr int kLargestScale4 = 63;  // 6 bits

// A sub-block represented as scale * code - minimum. Neither scale nor minimum is negative.
struct AffineFit {
  float scale = 0.0f;
  float minimum = 0.0f;
  float spread = 0.0f;     // sum((q - mean q)^2), the cost of an error of the scale
  float explained = 0.0f;  // the part of sum((x - mean x)^2) that the fit explains
};

// Returns the fit of the weights x = y + low, from sums over y. Sums over x would be inexact if the
// weights are close together and far from zero: the square of their offset would hide their small
// differences.
AffineFit FitCodes(const CodeSums& sums, float y_sum, float low) {
  const float spread = sums.qq - sums.q * sums.q / kSubBlock;
  if (spread > 0.0f) {
    const float together = sums.xq - y_sum * sums.q / kSubBlock;
    const float scale = together / spread;
    const float minimum = (scale * sums.q - y_sum) / kSubBlock - low;
    if (scale > 0.0f && minimum >= 0.0f) return {scale, minimum, spread, together * scale};
  }
  const CodeSums plain = {.qq = sums.qq, .xq = sums.xq + low * sums.q};
  const float x_sum = y_sum + low * kSubBlock;
  return {std::max(plain.scale(), 0.0f), 0.0f, spread,
          plain.explained() - x_sum * x_sum / kSubBlock};
}

AffineFit FitSubBlock(const float* x) {
  const auto [min, max] = std::minmax_element(x, x + kSubBlock);
  const float low = std::min(*min, 0.0f), high = *max;
  if (low == high) return {.minimum = -low};
  float y[kSubBlock];
  Lanes y_sums{};
  for (int i = 0; i < kSubBlock; ++i) y[i] = x[i] - low;
  for (int i = 0; i < kSubBlock; i += kLanes) y_sums += Load(y + i);
  const float y_sum = Total(y_sums);
  AffineFit best = FitCodes({}, y_sum, low);  // the fit with zero codes
  // Starts from the scale that has `levels` steps between the extremes. Each round rounds the
  // weights to codes and fits scale and minimum to the codes.
  const auto search = [&](float levels, int rounds) {
    AffineFit fit = {(high - low) / levels, -low};
    for (int round = 0; round < rounds && fit.scale > 0.0f; ++round) {
      fit = FitCodes(SumCodes<kSubBlock>(y, fit.minimum + low, 1.0f / fit.scale, kRange4), y_sum,
                     low);
      if (fit.explained > best.explained + std::abs(best.explained) * kRounding) best = fit;
    }
  };
  // The first loop tries each number from 1 to 15 as the highest code, and 0 as the lowest. If the
  // weights came from a block of this type and one of them had the code 0, one of these tries gives
  // the exact weights. Of equally good fits, the earliest is kept: it has the smallest scale. The
  // second loop tries 12, 12.5, ..., 18 levels, with three rounds each.
  for (int levels = 15; levels > 0; --levels) search(static_cast<float>(levels), 1);
  for (int halves = 24; halves <= 36; ++halves) search(static_cast<float>(halves) / 2.0f, 3);
  return best;
}

// The normal equations for the d and m of a whole block whose codes are given. They minimise
//   sum((x - d * scale * q + m * minimum)^2).
struct BlockSums {
  float dd = 0.0f, dm = 0.0f, mm = 0.0f, dx = 0.0f, mx = 0.0f;

  void Add(const float* x, const DecodedBlock& block) {
    const auto scale = static_cast<float>(block.scales[0]);
    const auto minimum = static_cast<float>(block.minimum_scale);
    for (int i = 0; i < kSubBlock; ++i) {
      const float q = scale * block.codes[i];
      dd += q * q;
      dm += q * minimum;
      mm += minimum * minimum;
      dx += q * x[i];
      mx += minimum * x[i];
    }
  }
  void Solve(float* d, float* m) const {
    const float determinant = dd * mm - dm * dm;
    if (determinant > 1e-6f * dd * mm) {
      *d = (dx * mm - mx * dm) / determinant;
      *m = (dx * dm - mx * dd) / determinant;
    }
  }
};

// Sets the scale, the minimum and the codes of one sub-block. Tries scales and minimums near `fit`
// and keeps those with the least error for the given d and m. Returns the error.
float ChooseSubBlock(const float* x, const AffineFit& fit, DecodedBlock* out) {
  const float d = F16ToF32(out->d), m = F16ToF32(out->m);
  const int scale = ScaleCode(fit.scale, d, kLargestScale4);
  const int minimum = ScaleCode(fit.minimum, m, kLargestScale4);
  float least = kInfinity;
  for (int s = std::max(scale - 2, 0); s <= std::min(scale + 2, kLargestScale4); ++s) {
    for (int n = std::max(minimum - 1, 0); n <= std::min(minimum + 1, kLargestScale4); ++n) {
      const float error =
          SquaredError<kSubBlock>(x, m * static_cast<float>(n), d * static_cast<float>(s), kRange4);
      if (error >= least) continue;
      least = error;
      out->scales[0] = out->scales[1] = s;
      out->minimum_scale = n;
    }
  }
  StoreCodes<kSubBlock>(x, -out->minimum(), out->scale(0), kRange4, out->codes);
  return least;
}

constexpr CodeRange kRange6{-32.0f, 31.0f};
constexpr int kHalf = kSubBlock / 2;  // weights that share a scale

// Finds the scale of 16 weights that has the least error for the given d, and returns the error.
// Tries all scales that put the extreme weight near an end of the code range. Tries both signs,
// because there is one more code below zero than above.
float ChooseHalf(const float* x, float d, int* scale) {
  const float whole = std::abs(Extreme<kHalf>(x)) / -kRange6.low * Inverse(d);
  const int from = static_cast<int>(std::min(whole, 128.0f) * 0.8f);
  const int to = static_cast<int>(std::min(whole * 1.08f, 127.0f)) + 1;
  float least = kInfinity;
  for (int magnitude = from; magnitude <= to; ++magnitude) {
    for (const int s : {-magnitude, std::min(magnitude, 127)}) {
      const float error = SquaredError<kHalf>(x, 0.0f, d * static_cast<float>(s), kRange6);
      if (error >= least) continue;
      least = error;
      *scale = s;
    }
  }
  return least;
}

}  // namespace

void QuantizeQ4K(const float* x, DecodedBlock* out) {
  float scales[kSubBlocks], minimums[kSubBlocks], spreads[kSubBlocks], ones[kSubBlocks];
  AffineFit fits[kSubBlocks];
  for (int j = 0; j < kSubBlocks; ++j) {
    fits[j] = FitSubBlock(x + j * kSubBlock);
    scales[j] = fits[j].scale;
    minimums[j] = fits[j].minimum;
    spreads[j] = fits[j].spread;
    ones[j] = 1.0f;
  }
  float d = ScaleOfScales<kSubBlocks>(scales, spreads, kLargestScale4);
  float m = ScaleOfScales<kSubBlocks>(minimums, ones, kLargestScale4);
  float least = kInfinity;
  for (int round = 0; round < kRounds && d >= 0.0f && m >= 0.0f; ++round) {
    DecodedBlock blocks[kSubBlocks];
    BlockSums sums;
    float error = 0.0f;
    for (int j = 0; j < kSubBlocks; ++j) {
      blocks[j].k_quant = true;
      blocks[j].d = StoredScale(d);
      blocks[j].m = StoredScale(m);
      error += ChooseSubBlock(x + j * kSubBlock, fits[j], &blocks[j]);
      sums.Add(x + j * kSubBlock, blocks[j]);
    }
    if (error >= least) break;
    least = error;
    std::copy(blocks, blocks + kSubBlocks, out);
    sums.Solve(&d, &m);
  }
}

void QuantizeQ6K(const float* x, DecodedBlock* out) {
  constexpr int kHalves = 2 * kSubBlocks;
  float scales[kHalves], importance[kHalves];
  for (int h = 0; h < kHalves; ++h) {
    scales[h] = std::abs(Extreme<kHalf>(x + h * kHalf)) / -kRange6.low;
    importance[h] = 1.0f;
  }
  float d = ScaleOfScales<kHalves>(scales, importance, 127);
  float least = kInfinity;
  for (int round = 0; round < kRounds; ++round) {
    DecodedBlock blocks[kSubBlocks];
    float error = 0.0f, dd = 0.0f, dx = 0.0f;
    for (int h = 0; h < kHalves; ++h) {
      DecodedBlock& block = blocks[h / 2];
      const float* half = x + h * kHalf;
      block.k_quant = true;
      block.d = StoredScale(d);
      block.offset = 32;
      int& scale = block.scales[h % 2];
      error += ChooseHalf(half, F16ToF32(block.d), &scale);
      const float step = block.scale(h % 2);
      StoreCodes<kHalf>(half, 0.0f, step, kRange6, block.codes + h % 2 * kHalf);
      const CodeSums sums = SumCodes<kHalf>(half, 0.0f, Inverse(step), kRange6);
      dd += static_cast<float>(scale * scale) * sums.qq;
      dx += static_cast<float>(scale) * sums.xq;
    }
    if (error >= least) break;
    least = error;
    std::copy(blocks, blocks + kSubBlocks, out);
    if (dd > 0.0f) d = dx / dd;
  }
}

}  // namespace quire::kernels::quantize_internal
