// The sixteen-lane vector every kernel is written against, and what follows from it alone. Included
// once in each ISA's translation unit, which defines QUIRE_ISA_NAMESPACE and one of
// QUIRE_SIMD_{PORTABLE,AVX2,AVX512}.
//
// Every operation is exact or rounds once, to nearest even, so all paths give the same bits:
//   Fma                 one rounding; nothing is contracted behind our back (-ffp-contract=off)
//   Max(a, b)           a > b ? a : b, lane by lane: b where either is NaN (x86's own rule)
//   DotSum<kMaxCode>    exact integer dots: Add(codes, quad, step) for step 0, 1, .. adds the four
//                       products (code - kOffset) * quad of each lane. Codes are at most kMaxCode,
//                       quad bytes in [-127, 127]; after 4 or 8 steps total is right
//   kTileVectors        how many vectors a tile may accumulate into without leaving the registers
//   Sum                 a fixed tree: lanes 8 apart, then 4, 2, 1
//
// The code lies in anonymous namespaces and uses no inline function of the standard library: what
// the linker merges across translation units must not hold another ISA's instructions.

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

// e^x to 2 ulp: e^x = 2^n e^r, |r| <= ln(2) / 2, by a polynomial of degree 6 (Cephes expf). Below
// -86 it is 0, above 88.72 infinity; NaN stays NaN.
inline VecF Exp(VecF x) {
  const VecF low = Set(-86.0f), high = Set(88.72f);
  const VecF clamped = Min(high, Max(low, x));
  // Adding 1.5 * 2^23 leaves round-to-nearest of the sum in the low bits.
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
  // 2^n in two factors: n is at most 128, and 2 * 2^127 is still in reach.
  const VecI exponent = ShiftLeft<23>(Bits(shifted));
  const VecF half_power = FromBits(AddI(exponent, SetI((127 - 1) << 23)));
  const VecF value = Mul(Mul(p, half_power), Set(2.0f));
  return Select(Less(x, low), Zero(), Select(Less(high, x), Set(kInfinity), value));
}

}  // namespace
}  // namespace quire::kernels::cpu::QUIRE_ISA_NAMESPACE
