#pragma once

// Log, Exp, Pow and SinCos, with the same bits on every machine.
//
// The C library has variants of these functions for different processors, and their last bits
// differ. So all code that decides an answer calls the functions below: the tables of RoPE, the
// slopes of ALiBi, the noise and the cuts of the sampler, the log-probabilities. The functions use
// only integers and IEEE operations on doubles. Each operation is exact, or rounds once to nearest
// even. (The build forbids contraction.)
//
//   Accuracy   Every result is within 1 ulp of the true value. reproducible_math_test.cc derives
//              the bounds. A power that is representable as a double is exact.
//   Range      All doubles. Zeros, infinities, NaN and out-of-range results are as in Annex F of
//              C, without errno.
//   Device     The functions are constexpr and have no static data, so nvcc compiles them for a
//              GPU unchanged. nvcc contracts operations unless -fmad=false forbids it.
//
// Log, Exp, Pow and the polynomials of Sin and Cos follow fdlibm. (Copyright (C) 1993, 2004 by Sun
// Microsystems, Inc. All rights reserved. Permission to use, copy, modify, and distribute this
// software is freely granted, provided that this notice is preserved.) The reduction of angles is
// that of M. Payne and R. Hanek (SIGNUM Newsletter 18, 1983), in integers.

#include <bit>
#include <cstdint>

namespace quire::base {
namespace reproducible_math {

inline constexpr double kInfinity = __builtin_inf();
inline constexpr double kNan = __builtin_nan("");
// ln(2) = kLn2High + kLn2Low. A product of kLn2High and an integer below 2^20 is exact.
inline constexpr double kLn2High = 6.93147180369123816490e-01;
inline constexpr double kLn2Low = 1.90821492927058770002e-10;

constexpr uint64_t Bits(double x) { return std::bit_cast<uint64_t>(x); }
constexpr double Double(uint64_t bits) { return std::bit_cast<double>(bits); }
constexpr double Abs(double x) { return Double(Bits(x) & ~(uint64_t{1} << 63)); }
// Returns 2^n, for n in -1022..1023.
constexpr double TwoTo(int n) { return Double(static_cast<uint64_t>(n + 1023) << 52); }
// Returns x without the last 32 bits of its significand. A product of two such numbers is exact.
constexpr double Upper(double x) { return Double(Bits(x) & 0xFFFFFFFF00000000); }

// Returns the integer nearest to x. If two are equally near, returns the one away from zero. |x|
// must be below 2^31.
constexpr int Round(double x) { return static_cast<int>(x < 0.0 ? x - 0.5 : x + 0.5); }

// Returns x * 2^n with one rounding, for x in [1/2, 2] and n in -1100..1100.
constexpr double Scale(double x, int n) {
  if (n > 1023) return x * TwoTo(1023) * TwoTo(n - 1023);
  if (n < -1021) return x * TwoTo(-960) * TwoTo(n + 960);  // the first product is normal and exact
  return x * TwoTo(n);
}

// The result of Split(x, lowest): x = 2^exponent * significand, with a significand from `lowest` up
// to 2 * lowest.
struct Parts {
  int exponent;
  double significand;
};

// `x` must be above 0 and finite, `lowest` in (1/2, 1].
constexpr Parts Split(double x, double lowest) {
  int exponent = 0;
  if (x < TwoTo(-1022)) {
    x *= TwoTo(54);
    exponent = -54;
  }
  // Let x = 2^e * s with 1 <= s < 2. The exponent of `shifted` is e + 1 if s is at least 2 *
  // lowest, and e otherwise.
  const uint64_t shifted = Bits(x) + (Bits(1.0) - Bits(lowest));
  constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1;
  return {.exponent = exponent + static_cast<int>(shifted >> 52) - 1023,
          .significand = Double((shifted & kFraction) + Bits(lowest))};
}

// Returns R1, where e^r = 1 + r + r * R1 / (2 - R1), for |r| <= ln(2) / 2. R1 is r - P(r^2). The
// polynomial P(r^2) approximates r (e^r + 1) / (e^r - 1) - 2 with an error below 2^-59.
constexpr double ExpR1(double r) {
  const double t = r * r;
  return r - t * (1.66666666666666019037e-01 +
                  t * (-2.77777777770155933842e-03 +
                       t * (6.61375632143793436117e-05 +
                            t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))));
}

// A number with more digits than a double: the sum high + low.
struct Sum {
  double high, low;
};

// Returns log2(x) for x above 0 and finite. `high` has at most 21 bits of significand, and the
// error of the sum is about 2^-68 of the result.
//
// x = 2^n * a, with a near c = 1 or c = 3/2, and log2(a) = log2(c) + 2 / ln(2) * atanh(s) with s =
// (a - c) / (a + c). The series of atanh(s) is evaluated as s / 3 * (3 + s^2 + r), where r is the
// rest of the series.
constexpr Sum Log2(double x) {
  constexpr double kThirdHigh = 9.61796700954437255859e-01;  // 2 / (3 ln(2)), its upper half
  constexpr double kThirdLow = -7.02846165095275826516e-09;
  constexpr double kThird = 9.61796693925975554329e-01;
  const auto [n, a] = Split(x, 0.8660254037844386);  // sqrt(3) / 2
  const bool near_one = a < 1.2247448713915890;      // sqrt(3/2)
  const double c = near_one ? 1.0 : 1.5;
  const double log2_c_high = near_one ? 0.0 : 5.84962487220764160156e-01;
  const double log2_c_low = near_one ? 0.0 : 1.35003920212974897128e-08;

  const double numerator = a - c;
  const double inverse = 1.0 / (a + c);
  const double s = numerator * inverse;
  const double s_high = Upper(s);
  const double denominator_high = Upper(a + c);
  const double denominator_low = a - (denominator_high - c);
  const double s_low =
      inverse * ((numerator - s_high * denominator_high) - s_high * denominator_low);

  const double s2 = s * s;
  double r =
      s2 * s2 *
      (5.99999999999994648725e-01 +
       s2 * (4.28571428578550184252e-01 +
             s2 * (3.33333329818377432918e-01 +
                   s2 * (2.72728123808534006489e-01 +
                         s2 * (2.30660745775561754067e-01 + s2 * 2.06975017800338417784e-01)))));
  r += s_low * (s_high + s);
  const double s2_high = s_high * s_high;
  const double series_high = Upper(3.0 + s2_high + r);
  const double series_low = r - ((series_high - 3.0) - s2_high);

  const double u = s_high * series_high;
  const double v = s_low * series_high + series_low * s;
  const double product_high = Upper(u + v);
  const double product_low = v - (product_high - u);
  const double log_high = kThirdHigh * product_high;
  const double log_low = kThirdLow * product_high + product_low * kThird + log2_c_low;
  const double high = Upper(((log_high + log_low) + log2_c_high) + n);
  return {.high = high, .low = log_low - (((high - n) - log2_c_high) - log_high)};
}

// Returns x^y for x above 0 and finite, y finite.
constexpr double PowOfPositive(double x, double y) {
  if (x == 1.0) return 1.0;
  // As x is not 1, |log2(x)| >= 2^-53. If |y| > 2^64, |y * log2(x)| > 2^11, and the power overflows
  // or underflows.
  if (Abs(y) > TwoTo(64)) return (x > 1.0) == (y > 0.0) ? kInfinity : 0.0;
  const Sum log2_x = Log2(x);
  const double y_high = Upper(y);
  const double low = (y - y_high) * log2_x.high + y * log2_x.low;
  const double high = y_high * log2_x.high;
  const double exponent = high + low;
  if (exponent >= 1025.0) return kInfinity;
  if (exponent <= -1080.0) return 0.0;

  // 2^exponent = 2^n * e^(u + v), and u + v is within ln(2) / 2 of 0.
  const int n = Round(exponent);
  const double rest = high - n;
  const double t = Upper(rest + low);
  const double u = t * 6.93147182464599609375e-01;  // ln(2), its upper half
  const double v =
      (low - (t - rest)) * 6.93147180559945286227e-01 + t * -1.90465429995776804525e-09;
  const double r = u + v;
  const double r_low = v - (r - u);
  const double r1 = ExpR1(r);
  return Scale(1.0 - (((r * r1) / (r1 - 2.0) - (r_low + r * r_low)) - r), n);
}

// An angle minus a multiple of pi / 2. The result, high + low, is at most pi / 4 in magnitude.
struct ReducedAngle {
  double high, low;
  uint32_t quadrant;  // the multiple, modulo 4
};

// Reduces x, which must be finite and at least 1/2. The relative error is below 2^-61.
//
// x = m * 2^e with an integer m of 53 bits. Only a window of the bits of 2 / pi matters for x * 2 /
// pi. The bits before the window only add multiples of 4, which are whole turns. The bits after the
// window add less than 2^-137. No double is nearer than 2^-61 to a nonzero multiple of pi / 2, so
// at least 64 good bits of the fraction remain.
constexpr ReducedAngle Reduce(double x) {
  __extension__ using Uint128 = unsigned __int128;
  // 64 zero bits, then the bits of 2 / pi after its binary point.
  constexpr uint64_t kTwoOverPi[20] = {
      0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041,
      0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E,
      0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B,
      0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
      0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB};
  constexpr uint64_t kHalfPi = 0xC90FDAA22168C235;  // pi / 2 * 2^63
  const int e = static_cast<int>(Bits(x) >> 52) - 1075;
  const uint64_t m = (Bits(x) & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);

  // The window has the 192 bits of 2^e * 2 / pi from the bit of value 2 downwards.
  const int start = e + 62;
  const auto word = [&](int i) {
    const uint64_t* const w = kTwoOverPi + start / 64 + i;
    const int shift = start % 64;
    return shift == 0 ? w[0] : w[0] << shift | w[1] >> (64 - shift);
  };
  // m * window modulo 2^192, without the last 64 bits. This is x * 2 / pi modulo 4, times 2^126.
  const Uint128 turns = (Uint128{m * word(0)} << 64) + Uint128{m} * word(1) +
                        static_cast<uint64_t>((Uint128{m} * word(2)) >> 64);
  const auto quadrant = static_cast<uint32_t>((turns + (Uint128{1} << 125)) >> 126);
  const Uint128 difference = turns - (Uint128{quadrant} << 126);
  const bool negative = static_cast<bool>(difference >> 127);
  const Uint128 fraction = negative ? -difference : difference;

  const auto upper = static_cast<uint64_t>(fraction >> 64);
  const int zeros =
      upper != 0 ? std::countl_zero(upper) : 64 + std::countl_zero(static_cast<uint64_t>(fraction));
  const Uint128 angle = Uint128{static_cast<uint64_t>((fraction << zeros) >> 64)} * kHalfPi;
  const auto first = static_cast<uint64_t>(angle >> 64), second = static_cast<uint64_t>(angle);
  const double unit = negative ? -TwoTo(-61 - zeros) : TwoTo(-61 - zeros);
  // `high` gets the upper 53 bits of `angle`, unrounded; `low` gets the next 64.
  return {.high = static_cast<double>(first & ~uint64_t{0x7FF}) * unit,
          .low = static_cast<double>((first & 0x7FF) << 53 | second >> 11) * (unit * TwoTo(-53)),
          .quadrant = quadrant & 3};
}

// Returns sin(x + low) for |x| <= pi / 4 and |low| at most an ulp of x. The polynomial's relative
// error is below 2^-58.
constexpr double SinOfSmall(double x, double low) {
  const double z = x * x;
  const double r = 8.33333333332248946124e-03 +
                   z * (-1.98412698298579493134e-04 + z * 2.75573137070700676789e-06) +
                   z * (z * z) * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10);
  const double cube = z * x;
  return x - ((z * (0.5 * low - cube * r) - low) - cube * -1.66666666666666324348e-01);
}

// Returns cos(x + low), for the same ranges of x and low.
constexpr double CosOfSmall(double x, double low) {
  const double z = x * x;
  const double w = z * z;
  const double r = z * (4.16666666666666019037e-02 +
                        z * (-1.38888888888741095749e-03 + z * 2.48015872894767294178e-05)) +
                   w * w *
                       (-2.75573143513906633035e-07 +
                        z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11));
  const double half = 0.5 * z;
  const double most = 1.0 - half;
  return most + (((1.0 - most) - half) + (z * r - x * low));
}

inline constexpr double kQuarterPi = 0.78539816339744828;  // below pi / 4

}  // namespace reproducible_math

// Returns the natural logarithm of x: -infinity for 0, NaN for numbers below 0.
//
// x = 2^k * (1 + f). With s = f / (2 + f),
//   log(1 + f) = 2 atanh(s) = 2 s + s R = f - (f^2/2 - s (f^2/2 + R)).
// R is a polynomial that approximates 2/3 s^2 + 2/5 s^4 + ... with an error below 2^-58.
constexpr double Log(double x) {
  using namespace reproducible_math;
  if (x != x || x == kInfinity) return x;
  if (x <= 0.0) return x == 0.0 ? -kInfinity : kNan;
  const auto [k, significand] = Split(x, 0.70710678118654757);  // sqrt(1/2)
  const double f = significand - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double w = z * z;
  const double even_powers = w * (3.999999999940941908e-01 +
                                  w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd_powers =
      z * (6.666666666666735130e-01 +
           w * (2.857142874366239149e-01 +
                w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half_square = 0.5 * f * f;
  return k * kLn2High -
         ((half_square - (s * (half_square + (odd_powers + even_powers)) + k * kLn2Low)) - f);
}

// Returns e^x = 2^k * e^r, with |r| <= ln(2) / 2.
constexpr double Exp(double x) {
  using namespace reproducible_math;
  if (x != x) return x;
  if (x > 709.782712893383973096) return kInfinity;
  if (x < -745.133219101941108420) return 0.0;
  const int k = Round(x * 1.44269504088896338700);
  const double high = x - k * kLn2High;
  const double low = k * kLn2Low;
  const double r = high - low;
  const double r1 = ExpR1(r);
  return Scale(1.0 - ((low - (r * r1) / (2.0 - r1)) - high), k);
}

// Returns x^y. The result is NaN if x is finite and below 0, and y is not an integer.
constexpr double Pow(double x, double y) {
  using namespace reproducible_math;
  if (y == 0.0 || x == 1.0) return 1.0;
  if (x != x || y != y) return kNan;
  const double magnitude = Abs(x), size = Abs(y);
  // All doubles from 2^53 on are even integers. Infinity counts as an even integer too.
  const bool integer = size >= TwoTo(53) || size == static_cast<double>(static_cast<int64_t>(size));
  const bool odd = integer && size < TwoTo(53) && static_cast<int64_t>(size) % 2 == 1;
  const bool negative = Bits(x) >> 63 != 0;
  if (negative && !integer && magnitude != 0.0 && magnitude != kInfinity) return kNan;
  double power = 1.0;
  if (magnitude == 0.0 || magnitude == kInfinity) {
    power = (magnitude == 0.0) == (y > 0.0) ? 0.0 : kInfinity;
  } else if (size == kInfinity) {
    if (magnitude != 1.0) power = (magnitude > 1.0) == (y > 0.0) ? kInfinity : 0.0;
  } else {
    power = PowOfPositive(magnitude, y);
  }
  return negative && odd ? -power : power;
}

struct SineCosine {
  double sine, cosine;
};

// Returns the sine and the cosine of an angle in radians. Both are NaN for an infinite angle.
constexpr SineCosine SinCos(double x) {
  using namespace reproducible_math;
  const double magnitude = Abs(x);
  if (!(magnitude < kInfinity)) return {.sine = kNan, .cosine = kNan};
  if (magnitude < TwoTo(-27)) return {.sine = x, .cosine = 1.0};  // keeps the sign of 0
  if (magnitude <= kQuarterPi) {
    return {.sine = SinOfSmall(x, 0.0), .cosine = CosOfSmall(x, 0.0)};
  }
  const ReducedAngle angle = Reduce(magnitude);
  double sine = SinOfSmall(angle.high, angle.low);
  double cosine = CosOfSmall(angle.high, angle.low);
  if (angle.quadrant % 2 == 1) {
    const double turned = -sine;
    sine = cosine;
    cosine = turned;
  }
  if (angle.quadrant >= 2) {
    sine = -sine;
    cosine = -cosine;
  }
  return {.sine = x < 0.0 ? -sine : sine, .cosine = cosine};
}

constexpr double Sin(double x) { return SinCos(x).sine; }
constexpr double Cos(double x) { return SinCos(x).cosine; }

}  // namespace quire::base
