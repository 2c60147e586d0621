// Sixteen lanes in plain C++. Included by one translation unit only, inside its namespace; see
// simd.h for what each operation means.

constexpr int kTileVectors = 4;

struct VecF {
  float lane[16];
};
struct VecI {
  int32_t lane[16];
};
struct Mask {
  uint32_t bits;
};

#define QUIRE_LANES for (int i = 0; i < 16; ++i)

inline VecF Load(const float* p) {
  VecF v;
  QUIRE_LANES v.lane[i] = p[i];
  return v;
}
inline VecF LoadN(const float* p, int n) {
  VecF v;
  QUIRE_LANES v.lane[i] = i < n ? p[i] : 0.0f;
  return v;
}
inline void Store(float* p, VecF v) { QUIRE_LANES p[i] = v.lane[i]; }
inline void StoreN(float* p, VecF v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v.lane[i];
}
inline VecF Set(float x) {
  VecF v;
  QUIRE_LANES v.lane[i] = x;
  return v;
}
inline VecF Zero() { return Set(0.0f); }

#define QUIRE_BINARY(name, expression)  \
  inline VecF name(VecF a, VecF b) {    \
    VecF v;                             \
    QUIRE_LANES v.lane[i] = expression; \
    return v;                           \
  }
QUIRE_BINARY(Add, a.lane[i] + b.lane[i])
QUIRE_BINARY(Sub, a.lane[i] - b.lane[i])
QUIRE_BINARY(Mul, a.lane[i] * b.lane[i])
QUIRE_BINARY(Div, a.lane[i] / b.lane[i])
QUIRE_BINARY(Max, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i])
QUIRE_BINARY(Min, a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i])
#undef QUIRE_BINARY

inline VecF Fma(VecF a, VecF b, VecF c) {
  VecF v;
  QUIRE_LANES v.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
  return v;
}
inline VecI Bits(VecF a) {
  VecI v;
  __builtin_memcpy(&v, &a, sizeof(v));
  return v;
}
inline VecF FromBits(VecI a) {
  VecF v;
  __builtin_memcpy(&v, &a, sizeof(v));
  return v;
}

inline Mask LaneRange(int lo, int hi) {
  uint32_t bits = 0;
  QUIRE_LANES bits |= i >= lo && i < hi ? 1u << i : 0u;
  return {bits};
}
inline Mask Less(VecF a, VecF b) {
  uint32_t bits = 0;
  QUIRE_LANES bits |= a.lane[i] < b.lane[i] ? 1u << i : 0u;
  return {bits};
}
inline VecF Select(Mask mask, VecF a, VecF b) {
  VecF v;
  QUIRE_LANES v.lane[i] = (mask.bits >> i) & 1 ? a.lane[i] : b.lane[i];
  return v;
}

inline VecI SetI(int32_t x) {
  VecI v;
  QUIRE_LANES v.lane[i] = x;
  return v;
}
inline VecI AddI(VecI a, VecI b) {
  VecI v;
  QUIRE_LANES v.lane[i] =
      static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) + static_cast<uint32_t>(b.lane[i]));
  return v;
}
inline VecI SubI(VecI a, VecI b) {
  VecI v;
  QUIRE_LANES v.lane[i] =
      static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) - static_cast<uint32_t>(b.lane[i]));
  return v;
}
inline VecI AndI(VecI a, VecI b) {
  VecI v;
  QUIRE_LANES v.lane[i] = a.lane[i] & b.lane[i];
  return v;
}
inline VecI MaxI(VecI a, VecI b) {
  VecI v;
  QUIRE_LANES v.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return v;
}
template <int kBits>
inline VecI ShiftLeft(VecI a) {
  VecI v;
  QUIRE_LANES v.lane[i] = static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) << kBits);
  return v;
}
inline VecF ToFloat(VecI a) {
  VecF v;
  QUIRE_LANES v.lane[i] = static_cast<float>(a.lane[i]);
  return v;
}
inline VecI LoadI(const int32_t* p) {
  VecI v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
inline void StoreI(int32_t* p, VecI v) { __builtin_memcpy(p, &v, sizeof(v)); }

// Sixteen groups of four bytes.
struct VecB {
  uint8_t byte[64];
};
inline VecB LoadB(const uint8_t* p) {
  VecB v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
inline VecB LowNibbles(VecB a) {
  for (uint8_t& byte : a.byte) byte &= 15;
  return a;
}
inline VecB HighNibbles(VecB a) {
  for (uint8_t& byte : a.byte) byte >>= 4;
  return a;
}
inline VecB SubB(VecB a, uint8_t b) {
  for (uint8_t& byte : a.byte) byte = static_cast<uint8_t>(byte - b);
  return a;
}
inline void StoreB(uint8_t* p, const VecB& a) { __builtin_memcpy(p, &a, sizeof(a)); }
// Four signed bytes, the same for every lane.
struct Quad {
  const int8_t* p;
};
inline Quad LoadQuad(const int8_t* p) { return {p}; }
template <int kMaxCode>
struct DotSum {
  static constexpr int kOffset = 0;
  VecI total;
  void Add(const VecB& codes, Quad a, int) {
    QUIRE_LANES {
      for (int j = 0; j < 4; ++j) total.lane[i] += int32_t{codes.byte[4 * i + j]} * int32_t{a.p[j]};
    }
  }
};

inline void StoreS8(int8_t* p, VecI v) { QUIRE_LANES p[i] = static_cast<int8_t>(v.lane[i]); }
inline VecF LoadS8(const int8_t* p) {
  VecF v;
  QUIRE_LANES v.lane[i] = static_cast<float>(p[i]);
  return v;
}
inline VecF LoadU8(const uint8_t* p) {
  VecF v;
  QUIRE_LANES v.lane[i] = static_cast<float>(p[i]);
  return v;
}

inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000u | (mantissa != 0 ? 0x400000u : 0u) | (mantissa << 13);
  } else if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    __builtin_memcpy(&bits, &magnitude, sizeof(bits));
    bits |= sign;
  } else {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  }
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint16_t FloatToHalf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    float sum;
    __builtin_memcpy(&sum, &magnitude, sizeof(sum));
    sum += 0.5f;
    __builtin_memcpy(&magnitude, &sum, sizeof(sum));
    return static_cast<uint16_t>(sign | (magnitude - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}
inline VecF LoadN(const Half* p, int n) {
  VecF v;
  QUIRE_LANES v.lane[i] = i < n ? HalfToFloat(p[i].bits) : 0.0f;
  return v;
}
inline VecF Load(const Half* p) { return LoadN(p, 16); }
inline void StoreN(Half* p, VecF v, int n) {
  for (int i = 0; i < n; ++i) p[i].bits = FloatToHalf(v.lane[i]);
}

inline VecF LoadN(const Brain* p, int n) {
  VecI v;
  QUIRE_LANES v.lane[i] = i < n ? static_cast<int32_t>(static_cast<uint32_t>(p[i].bits) << 16) : 0;
  return FromBits(v);
}
inline VecF Load(const Brain* p) { return LoadN(p, 16); }
inline void StoreN(Brain* p, VecF v, int n) {
  const VecI bits = Bits(v);
  for (int i = 0; i < n; ++i) {
    const uint32_t b = static_cast<uint32_t>(bits.lane[i]);
    p[i].bits = static_cast<uint16_t>((b & 0x7fffffffu) > 0x7f800000u
                                          ? (b >> 16) | 0x40u
                                          : (b + 0x7fffu + ((b >> 16) & 1)) >> 16);
  }
}
inline float E4M3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  uint32_t bits = static_cast<uint32_t>(code & 0x7fu) << 20;
  if (bits == 0x07f00000u) {
    bits = 0x7ff00000u;
  } else {
    // The bits are those of a number 2^-120 times as large.
    float value;
    __builtin_memcpy(&value, &bits, sizeof(value));
    value *= 0x1p120f;
    __builtin_memcpy(&bits, &value, sizeof(value));
  }
  bits |= sign;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}
inline VecF LoadN(const E4M3* p, int n) {
  VecF v;
  QUIRE_LANES v.lane[i] = i < n ? E4M3ToFloat(p[i].bits) : 0.0f;
  return v;
}
inline VecF Load(const E4M3* p) { return LoadN(p, 16); }
// Returns 2^-8 times the numbers of 16 codes, none of which is NaN: a factor less to multiply.
inline VecF LoadFinite256ths(const E4M3* p) { return Mul(Load(p), Set(0x1p-8f)); }
inline void Prefetch(const void*) {}

inline float Lane0(VecF a) { return a.lane[0]; }
// Moves the lanes down by kBy, which is 8, 4, 2 or 1. The upper lanes of the result do not matter.
template <int kBy>
inline VecF Down(VecF a) {
  VecF v = a;
  for (int i = 0; i + kBy < 16; ++i) v.lane[i] = a.lane[i + kBy];
  return v;
}
// Lane i of the result is the sum, or the largest, of all lanes of v[i].
inline VecI SumOfEach(const VecI (&v)[16]) {
  VecI sums = SetI(0);
  for (int lane = 0; lane < 16; ++lane) QUIRE_LANES sums.lane[i] += v[i].lane[lane];
  return sums;
}
inline VecI LargestOfEach(const VecI (&v)[16]) {
  VecI largest;
  QUIRE_LANES {
    largest.lane[i] = v[i].lane[0];
    for (const int32_t lane : v[i].lane)
      largest.lane[i] = lane > largest.lane[i] ? lane : largest.lane[i];
  }
  return largest;
}
#undef QUIRE_LANES
