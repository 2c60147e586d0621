// The sixteen-lane vector type of all CPU kernels, and the functions that need only this type. The
// translation unit of each ISA includes this file once, after it has defined QUIRE_ISA_NAMESPACE
// and one of QUIRE_SIMD_{PORTABLE,AVX2,AVX512}.
//
// Every operation is exact or rounds once, to nearest even, so all paths give the same bits:
//   Fma                 one rounding; the compiler fuses nothing else (-ffp-contract=off)
//   Max(a, b)           a > b ? a : b, lane by lane: b where either is NaN (x86's own rule)
//   DotSum<kMaxCode>    exact integer dots: Add(codes, quad, step) for step 0, 1, .. adds the four
//                       products (code - kOffset) * quad of each lane. Codes are at most kMaxCode,
//                       quad bytes in [-127, 127]. `total` is complete after 4 or 8 steps
//   kTileVectors        the number of vectors that a tile can accumulate into within the registers
//   Sum                 a fixed tree: lanes 8 apart, then 4, 2, 1
//
// The code is in anonymous namespaces and uses no inline function of the standard library. The
// linker merges inline functions across translation units, and the merged function must not have
// the instructions of another ISA.

#include <cstdint>

#ifndef QUIRE_SIMD_PORTABLE
#include <immintrin.h>
#endif

namespace quire::kernels::cpu::QUIRE_ISA_NAMESPACE {
namespace {

// Storage of f16 and bf16.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
// Storage of e4m3.
struct E4M3 {
  uint8_t bits;
};

#if defined(QUIRE_SIMD_AVX512)
#include "kernels/cpu/simd_avx512.h"
#elif defined(QUIRE_SIMD_AVX2)
#include "kernels/cpu/simd_avx2.h"
#else
#include "kernels/cpu/simd_portable.h"
#endif

constexpr float kInfinity = __builtin_inff();

inline int64_t SmallerOf(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t LargerOf(int64_t a, int64_t b) { return a > b ? a : b; }

inline void Store(Half* p, VecF v) { StoreN(p, v, 16); }
inline void Store(Brain* p, VecF v) { StoreN(p, v, 16); }

inline float Sum(VecF a) {
  a = Add(a, Down<8>(a));
  a = Add(a, Down<4>(a));
  a = Add(a, Down<2>(a));
  return Lane0(Add(a, Down<1>(a)));
}
inline float Largest(VecF a) {
  a = Max(a, Down<8>(a));
  a = Max(a, Down<4>(a));
  a = Max(a, Down<2>(a));
  return Lane0(Max(a, Down<1>(a)));
}

// Returns e^x with an error of at most 2 ulp. e^x = 2^n e^r with |r| <= ln(2) / 2, where a
// polynomial of degree 7 gives e^r (Cephes expf). The result is 0 for x below -86, and infinity for
// x above 88.72. NaN stays NaN.
inline VecF Exp(VecF x) {
  const VecF low = Set(-86.0f), high = Set(88.72f);
  const VecF clamped = Min(high, Max(low, x));
  // The addition of 1.5 * 2^23 rounds to the nearest integer and leaves that integer in the low
  // bits.
  const VecF magic = Set(12582912.0f);
  const VecF shifted = Fma(clamped, Set(1.44269504088896341f), magic);
  const VecF n = Sub(shifted, magic);
  VecF r = Fma(n, Set(-0.693359375f), clamped);
  r = Fma(n, Set(2.12194440e-4f), r);
  VecF p = Fma(Set(1.9875691500e-4f), r, Set(1.3981999507e-3f));
  p = Fma(p, r, Set(8.3334519073e-3f));
  p = Fma(p, r, Set(4.1665795894e-2f));
  p = Fma(p, r, Set(1.6666665459e-1f));
  p = Fma(p, r, Set(5.0000001201e-1f));
  p = Fma(p, Mul(r, r), Add(r, Set(1.0f)));
  // Multiplies by 2^(n - 1) and then by 2, because n may be 128 and 2^128 is not a float.
  const VecI exponent = ShiftLeft<23>(Bits(shifted));
  const VecF half_power = FromBits(AddI(exponent, SetI((127 - 1) << 23)));
  const VecF value = Mul(Mul(p, half_power), Set(2.0f));
  return Select(Less(x, low), Zero(), Select(Less(high, x), Set(kInfinity), value));
}

// Returns cap * tanh(x / cap), with tanh(y) = 1 - 2 / (e^(2y) + 1).
inline VecF SoftCap(VecF x, float cap) {
  const VecF e = Exp(Mul(x, Set(2.0f / cap)));
  const VecF tanh = Sub(Set(1.0f), Div(Set(2.0f), Add(e, Set(1.0f))));
  return Mul(tanh, Set(cap));
}

}  // namespace
}  // namespace quire::kernels::cpu::QUIRE_ISA_NAMESPACE
