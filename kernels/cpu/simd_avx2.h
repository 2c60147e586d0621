// Sixteen lanes in two ymm registers; needs AVX2, FMA and F16C. See simd.h.

constexpr int kTileVectors = 4;

struct VecF {
  __m256 lo, hi;
};
struct VecI {
  __m256i lo, hi;
};
struct Mask {
  __m256i lo, hi;  // all ones or all zeros per lane
};

inline __m256i LanesBelow(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline VecF Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
// LoadN and StoreN handle whole vectors without masks, because a masked store costs many times as
// much as a plain store, and few vectors are partial.
inline VecF LoadN(const float* p, int n) {
  if (n == 16) return Load(p);
  return {_mm256_maskload_ps(p, LanesBelow(n)),
          n > 8 ? _mm256_maskload_ps(p + 8, LanesBelow(n - 8)) : _mm256_setzero_ps()};
}
inline void Store(float* p, VecF v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
inline void StoreN(float* p, VecF v, int n) {
  if (n == 16) return Store(p, v);
  _mm256_maskstore_ps(p, LanesBelow(n), v.lo);
  if (n > 8) _mm256_maskstore_ps(p + 8, LanesBelow(n - 8), v.hi);
}
inline VecF Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline VecF Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

#define QUIRE_BINARY(type, name, op) \
  inline type name(type a, type b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
QUIRE_BINARY(VecF, Add, _mm256_add_ps)
QUIRE_BINARY(VecF, Sub, _mm256_sub_ps)
QUIRE_BINARY(VecF, Mul, _mm256_mul_ps)
QUIRE_BINARY(VecF, Div, _mm256_div_ps)
QUIRE_BINARY(VecF, Max, _mm256_max_ps)
QUIRE_BINARY(VecF, Min, _mm256_min_ps)
QUIRE_BINARY(VecI, AddI, _mm256_add_epi32)
QUIRE_BINARY(VecI, SubI, _mm256_sub_epi32)
QUIRE_BINARY(VecI, AndI, _mm256_and_si256)
QUIRE_BINARY(VecI, MaxI, _mm256_max_epi32)
#undef QUIRE_BINARY

inline VecF Fma(VecF a, VecF b, VecF c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline VecI Bits(VecF a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline VecF FromBits(VecI a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }

inline Mask LaneRange(int lo, int hi) {
  return {_mm256_andnot_si256(LanesBelow(lo), LanesBelow(hi)),
          _mm256_andnot_si256(LanesBelow(lo - 8), LanesBelow(hi - 8))};
}
inline Mask Less(VecF a, VecF b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
inline VecF Select(Mask mask, VecF a, VecF b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(mask.lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(mask.hi))};
}

inline VecI SetI(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
template <int kBits>
inline VecI ShiftLeft(VecI a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
inline VecF ToFloat(VecI a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline VecI LoadI(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void StoreI(int32_t* p, VecI v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.hi);
}

struct VecB {
  __m256i lo, hi;
};
inline VecB LoadB(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline VecB LowNibbles(VecB a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
inline VecB HighNibbles(VecB a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), mask),
          _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), mask)};
}
struct Quad {
  __m256i v;
};
inline Quad LoadQuad(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return {_mm256_set1_epi32(four)};
}
template <int kMaxCode>
struct DotSum {
  // An 8-bit code is weight + 128, and with such codes vpmaddubsw would saturate. So Pairs
  // multiplies |weight| by sign(weight) * activation. This also removes the offset of 128.
  static constexpr int kOffset = kMaxCode > 127 ? 128 : 0;
  // vpmaddubsw gives 16-bit sums of two products. kSteps such sums can be added in 16 bits before
  // they must be widened to 32 bits.
  static constexpr int kSteps = 32767 / (2 * 127 * (kMaxCode - kOffset));
  static_assert(kSteps == 1 || kSteps == 2 || kSteps == 4 || kSteps == 8);

  VecI total;
  __m256i lo, hi;

  void Add(VecB codes, Quad a, int step) {
    const __m256i pairs_lo = Pairs(codes.lo, a.v), pairs_hi = Pairs(codes.hi, a.v);
    const bool first = step % kSteps == 0, last = step % kSteps == kSteps - 1;
    lo = first ? pairs_lo : _mm256_add_epi16(lo, pairs_lo);
    hi = first ? pairs_hi : _mm256_add_epi16(hi, pairs_hi);
    // Prevents the compiler from adding in another order, in which every product would be live at
    // once.
    __asm__("" : "+x"(lo), "+x"(hi));
    if (!last) return;
    total.lo = _mm256_add_epi32(total.lo, _mm256_madd_epi16(lo, _mm256_set1_epi16(1)));
    total.hi = _mm256_add_epi32(total.hi, _mm256_madd_epi16(hi, _mm256_set1_epi16(1)));
  }

  static __m256i Pairs(__m256i codes, __m256i a) {
    if constexpr (kOffset == 0) return _mm256_maddubs_epi16(codes, a);
    const __m256i weight = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
    return _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(a, weight));
  }
};

inline void StoreS8(int8_t* p, VecI v) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.lo, v.hi), 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
inline VecF LoadS8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline VecF LoadU8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}

inline VecF Load(const Half* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline VecF Load(const Brain* p) {
  const auto widen = [](const Brain* half) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(half));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  };
  return {widen(p), widen(p + 8)};
}
// Moves the bits of 16 codes to their places in f16. There they are numbers 2^-8 times as large.
inline __m256i LoadAsHalfs(const E4M3* p) {
  const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(-0x4080));
}
inline VecF Load(const E4M3* p) {
  __m256i halfs = LoadAsHalfs(p);
  const __m256i nan =
      _mm256_cmpeq_epi16(_mm256_or_si256(halfs, _mm256_set1_epi16(-0x3f81)), _mm256_set1_epi16(-1));
  halfs = _mm256_or_si256(halfs, _mm256_and_si256(nan, _mm256_set1_epi16(0x4000)));
  const __m256 scale = _mm256_set1_ps(256.0f);
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halfs)), scale),
          _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halfs, 1)), scale)};
}
template <typename T>  // Half, Brain or E4M3
inline VecF LoadN(const T* p, int n) {
  if (n == 16) return Load(p);
  T copy[16] = {};
  for (int i = 0; i < n; ++i) copy[i] = p[i];
  return Load(copy);
}
inline void StoreWords(void* p, __m128i lo, __m128i hi, int n) {
  if (n == 16) {
    _mm_storeu_si128(static_cast<__m128i*>(p), lo);
    _mm_storeu_si128(static_cast<__m128i*>(p) + 1, hi);
    return;
  }
  alignas(32) uint16_t words[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(words), lo);
  _mm_store_si128(reinterpret_cast<__m128i*>(words + 8), hi);
  __builtin_memcpy(p, words, 2 * static_cast<unsigned>(n));
}
inline void StoreN(Half* p, VecF v, int n) {
  StoreWords(p, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT),
             _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT), n);
}
inline void StoreN(Brain* p, VecF v, int n) {
  const auto narrow = [](__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  };
  StoreWords(p, narrow(v.lo), narrow(v.hi), n);
}
// Returns 2^-8 times the numbers of 16 codes, none of which is NaN: a factor less to multiply.
inline VecF LoadFinite256ths(const E4M3* p) {
  const __m256i halfs = LoadAsHalfs(p);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halfs)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halfs, 1))};
}
inline void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

inline float Lane0(VecF a) { return _mm256_cvtss_f32(a.lo); }
template <int kBy>
inline VecF Down(VecF a) {
  if constexpr (kBy == 8) return {a.hi, a.hi};
  // The callers begin with Down<8> and fold the upper half into the lower half. So the later calls
  // need to move only the lower half.
  if constexpr (kBy == 4) {
    const __m256 swapped = _mm256_permute2f128_ps(a.lo, a.lo, 1);
    return {swapped, swapped};
  }
  if constexpr (kBy == 2) return {_mm256_permute_ps(a.lo, 0x0e), a.hi};
  return {_mm256_permute_ps(a.lo, 0x01), a.hi};
}

// Lane i of the result is the fold of all lanes of v[i].
template <VecI (*kFold)(VecI, VecI)>
inline VecI FoldEach(const VecI (&v)[16]) {
  __m256i eighths[16];  // the two halves of each vector, folded
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) eighths[i] = kFold(v[i], {v[i].hi, v[i].hi}).lo;
  const auto fold = [](__m256i a, __m256i b) { return kFold({a, a}, {b, b}).lo; };
  const auto eight = [&fold](const __m256i* e) {
    __m256i halves[4], pairs[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      halves[i] = fold(_mm256_permute2x128_si256(e[i], e[i + 4], 0x20),
                       _mm256_permute2x128_si256(e[i], e[i + 4], 0x31));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      pairs[i] = fold(_mm256_unpacklo_epi64(halves[i], halves[i + 2]),
                      _mm256_unpackhi_epi64(halves[i], halves[i + 2]));
    }
    const __m256 a = _mm256_castsi256_ps(pairs[0]), b = _mm256_castsi256_ps(pairs[1]);
    const __m256i folded = fold(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                                _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)));
    // The lanes of `folded` belong to vectors 0, 2, 1, 3 and 4, 6, 5, 7. The shuffle sorts them.
    return _mm256_shuffle_epi32(folded, 0xd8);
  };
  return {eight(eighths), eight(eighths + 8)};
}
inline VecI SumOfEach(const VecI (&v)[16]) { return FoldEach<AddI>(v); }
inline VecI LargestOfEach(const VecI (&v)[16]) { return FoldEach<MaxI>(v); }
