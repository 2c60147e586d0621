// Sixteen lanes in one zmm register; needs AVX-512 F, BW, DQ, VL and VNNI. See simd.h.

constexpr int kTileVectors = 16;

struct VecF {
  __m512 v;
};
struct VecI {
  __m512i v;
};
struct Mask {
  __mmask16 bits;
};

inline __mmask16 FirstLanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

inline VecF Load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline VecF LoadN(const float* p, int n) { return {_mm512_maskz_loadu_ps(FirstLanes(n), p)}; }
inline void Store(float* p, VecF v) { _mm512_storeu_ps(p, v.v); }
inline void StoreN(float* p, VecF v, int n) { _mm512_mask_storeu_ps(p, FirstLanes(n), v.v); }
inline VecF Set(float x) { return {_mm512_set1_ps(x)}; }
inline VecF Zero() { return {_mm512_setzero_ps()}; }
inline VecF Add(VecF a, VecF b) { return {_mm512_add_ps(a.v, b.v)}; }
inline VecF Sub(VecF a, VecF b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline VecF Mul(VecF a, VecF b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline VecF Div(VecF a, VecF b) { return {_mm512_div_ps(a.v, b.v)}; }
inline VecF Max(VecF a, VecF b) { return {_mm512_max_ps(a.v, b.v)}; }
inline VecF Min(VecF a, VecF b) { return {_mm512_min_ps(a.v, b.v)}; }
inline VecF Fma(VecF a, VecF b, VecF c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline VecI Bits(VecF a) { return {_mm512_castps_si512(a.v)}; }
inline VecF FromBits(VecI a) { return {_mm512_castsi512_ps(a.v)}; }

inline Mask LaneRange(int lo, int hi) {
  return {static_cast<__mmask16>(FirstLanes(hi) & ~FirstLanes(lo))};
}
inline Mask Less(VecF a, VecF b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline VecF Select(Mask mask, VecF a, VecF b) {
  return {_mm512_mask_blend_ps(mask.bits, b.v, a.v)};
}

inline VecI SetI(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline VecI AddI(VecI a, VecI b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline VecI SubI(VecI a, VecI b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline VecI AndI(VecI a, VecI b) { return {_mm512_and_si512(a.v, b.v)}; }
inline VecI MaxI(VecI a, VecI b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int kBits>
inline VecI ShiftLeft(VecI a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
inline VecF ToFloat(VecI a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline VecI LoadI(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void StoreI(int32_t* p, VecI v) { _mm512_storeu_si512(p, v.v); }

struct VecB {
  __m512i v;
};
inline VecB LoadB(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline VecB LowNibbles(VecB a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline VecB HighNibbles(VecB a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
inline VecB SubB(VecB a, uint8_t b) {
  return {_mm512_sub_epi8(a.v, _mm512_set1_epi8(static_cast<char>(b)))};
}
inline void StoreB(uint8_t* p, VecB a) { _mm512_storeu_si512(p, a.v); }
struct Quad {
  __m512i v;
};
inline Quad LoadQuad(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return {_mm512_set1_epi32(four)};
}
template <int kMaxCode>
struct DotSum {
  static constexpr int kOffset = 0;
  VecI total;
  void Add(VecB codes, Quad a, int) { total.v = _mm512_dpbusd_epi32(total.v, codes.v, a.v); }
};

inline void StoreS8(int8_t* p, VecI v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v.v));
}
inline VecF LoadS8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline VecF LoadU8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

inline VecF Load(const Half* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline VecF LoadN(const Half* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstLanes(n), p))};
}
inline void StoreN(Half* p, VecF v, int n) {
  _mm256_mask_storeu_epi16(p, FirstLanes(n), _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT));
}
inline VecF WidenBrain(__m256i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline VecF Load(const Brain* p) {
  return WidenBrain(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline VecF LoadN(const Brain* p, int n) {
  return WidenBrain(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
}
inline void StoreN(Brain* p, VecF v, int n) {
  const __m512i bits = _mm512_castps_si512(v.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(v.v, v.v, _CMP_UNORD_Q);
  _mm256_mask_storeu_epi16(p, FirstLanes(n),
                           _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet)));
}
// Moves the bits of 16 codes to their places in f16. There they are numbers 2^-8 times as large.
inline __m256i AsHalfs(__m128i codes) {
  return _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7),
                          _mm256_set1_epi16(-0x4080));
}
inline VecF WidenE4M3(__m128i codes) {
  __m256i halfs = AsHalfs(codes);
  const __mmask16 nan =
      _mm_cmpeq_epi8_mask(_mm_or_si128(codes, _mm_set1_epi8(-0x80)), _mm_set1_epi8(-1));
  halfs = _mm256_mask_mov_epi16(halfs, nan, _mm256_or_si256(halfs, _mm256_set1_epi16(0x4000)));
  return {_mm512_mul_ps(_mm512_cvtph_ps(halfs), _mm512_set1_ps(256.0f))};
}
inline VecF Load(const E4M3* p) {
  return WidenE4M3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline VecF LoadN(const E4M3* p, int n) {
  return WidenE4M3(_mm_maskz_loadu_epi8(FirstLanes(n), p));
}
// Returns 2^-8 times the numbers of 16 codes, none of which is NaN: a factor less to multiply.
inline VecF LoadFinite256ths(const E4M3* p) {
  return {_mm512_cvtph_ps(AsHalfs(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

inline float Lane0(VecF a) { return _mm512_cvtss_f32(a.v); }
template <int kBy>
inline VecF Down(VecF a) {
  return {_mm512_castsi512_ps(
      _mm512_alignr_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(a.v), kBy))};
}

// Lane i of the result is the fold of all lanes of v[i].
template <VecI (*kFold)(VecI, VecI)>
inline VecI FoldEach(const VecI (&v)[16]) {
  // Folds each vector to four lanes. The vectors i, i + 8, i + 4 and i + 12 become the four
  // quarters of quarters[i], in this order.
  VecI quarters[4], halves[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i a = v[i].v, b = v[i + 8].v;
    halves[i] = kFold({_mm512_shuffle_i64x2(a, b, 0x44)}, {_mm512_shuffle_i64x2(a, b, 0xee)});
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = halves[i].v, b = halves[i + 4].v;
    quarters[i] = kFold({_mm512_shuffle_i64x2(a, b, 0x88)}, {_mm512_shuffle_i64x2(a, b, 0xdd)});
  }
  // Folds the four lanes of each vector to two lanes, then to one lane. The lanes of a vector stay
  // in their quarter.
  VecI pairs[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512i a = quarters[i].v, b = quarters[i + 2].v;
    pairs[i] = kFold({_mm512_unpacklo_epi64(a, b)}, {_mm512_unpackhi_epi64(a, b)});
  }
  const __m512 a = _mm512_castsi512_ps(pairs[0].v), b = _mm512_castsi512_ps(pairs[1].v);
  const VecI folded = kFold({_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88))},
                            {_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd))});
  const __m512i from = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return {_mm512_permutexvar_epi32(from, folded.v)};
}
inline VecI SumOfEach(const VecI (&v)[16]) { return FoldEach<AddI>(v); }
inline VecI LargestOfEach(const VecI (&v)[16]) { return FoldEach<MaxI>(v); }
