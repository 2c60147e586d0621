// Matrix kernels, written once for every ISA; see kernel_bodies.h.
//
// A quantised product folds an output block by block of 32 k, in order:
//     acc = fma(float(dot - offset * sum_a), d_w * d_a, acc)    exact integer dot of the block
//     acc = fma(m_w, d_a * sum_a, acc)                          where the type has a minimum
// For Q6_K the first fma is done once for each 16 k. A float product folds an output as one chain,
// acc = fma(w[k], a[k], acc) over k. An output does not depend on how many rows or groups are
// worked on together.

// The number of rows that are computed together, so that the codes are unpacked once for all of
// them. The registers limit the number: besides its sum, each row needs one or two registers.
constexpr int kQuantRows = kTileVectors == 16 ? 8 : 4;

inline VecF LoadHalfs(const uint8_t* p) { return Load(reinterpret_cast<const Half*>(p)); }

// BlockScale and BlockMinimum return the scales and minimums of 16 outputs in a block. For a
// K-quant, each is the exact product of an f16 of the header and an 8-bit integer.
template <class Format>
inline VecF BlockScale(const uint8_t* header, const uint8_t* scales, int part) {
  if constexpr (!Format::kSuper) {
    return LoadHalfs(scales);
  } else if constexpr (Format::kParts == 2) {
    return Mul(LoadHalfs(header), LoadS8(reinterpret_cast<const int8_t*>(scales) + 16 * part));
  } else {
    return Mul(LoadHalfs(header), LoadU8(scales));
  }
}
template <class Format>
inline VecF BlockMinimum(const uint8_t* header, const uint8_t* scales) {
  if constexpr (Format::kSuper) {
    return Sub(Zero(), Mul(LoadHalfs(header + 32), LoadU8(scales + 16)));
  } else {
    return LoadHalfs(scales + 32);
  }
}

// The part of the offset of the codes that DotSum does not subtract.
template <class Format>
constexpr int kOffsetLeft = Format::kOffset - DotSum<Format::kMaxCode>::kOffset;

// Computes the initial values of the integer dot products of 16 rows of activations. An initial
// value is -kOffsetLeft times the sum of the row's int8 values in the block or part. It cancels the
// part of the codes' offset that DotSum does not subtract. All outputs of a row use the same
// initial values. `starts` has the shape [blocks * kParts][16].
template <class Format>
inline void DotStarts(const LinearTile& tile, const QuantizedRows& a, int32_t* starts) {
  const int64_t num_starts = tile.cols / 32 * Format::kParts;
  for (int64_t i = 0; i < num_starts; ++i) {
    const int32_t* sums = a.sums + 16 * (2 / Format::kParts) * i;
    const VecI sum = Format::kParts == 2 ? LoadI(sums) : AddI(LoadI(sums), LoadI(sums + 16));
    constexpr int kShift = __builtin_ctz(kOffsetLeft<Format>);
    StoreI(starts + 16 * i, SubI(SetI(0), ShiftLeft<kShift>(sum)));
  }
}

// Computes 16 outputs for each of the first `num_rows` of kRows rows. All kRows rows may be read.
// `starts` points to the DotStarts results of the first row. It is used only if the rows are stored
// in groups of 16.
template <class Format, int kRows, int kGroupRows>
inline void QuantTile(const LinearTile& tile, const uint8_t* group, const QuantizedRows& a,
                      const int32_t* starts, float* y, int64_t num_rows = kRows) {
  VecF acc[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r] = Zero();
  const int64_t num_blocks = tile.cols / 32;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const uint8_t* block = group + Format::BlockAt(b);
    const uint8_t* scales = block + Format::kCodeBytes;
    const uint8_t* header = group + Format::HeaderAt(b);
    if constexpr (kRows == 1) {
      for (int i = 0; i < Format::kBlockBytes; i += 64) Prefetch(block + 2048 + i);
    }
#pragma GCC unroll 2
    for (int part = 0; part < Format::kParts; ++part) {
      constexpr int kPartK = 32 / Format::kParts;
      using Dot = DotSum<Format::kMaxCode>;
      Dot dot[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        if constexpr (kOffsetLeft<Format> == 0) {
          dot[r].total = SetI(0);
        } else if constexpr (kGroupRows == 16) {
          dot[r].total = SetI(starts[16 * (b * Format::kParts + part) + r]);
        } else {
          const int32_t* sums = a.sums + 2 * b;
          const int32_t sum = Format::kParts == 2 ? sums[part] : sums[0] + sums[1];
          dot[r].total = SetI(-kOffsetLeft<Format> * sum);
        }
      }
      if constexpr (Format::kCodeBits == 4) {
#pragma GCC unroll 4
        for (int p = 0; p < 4; ++p) {
          const VecB codes = LoadB(block + 64 * p);
          const VecB low = LowNibbles(codes), high = HighNibbles(codes);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const int8_t* q = a.q + (b * kGroupRows + r) * 32 + 4 * p;
            dot[r].Add(low, LoadQuad(q), 2 * p);
            dot[r].Add(high, LoadQuad(q + 16), 2 * p + 1);
          }
        }
      } else {
#pragma GCC unroll 8
        for (int step = 0; step < kPartK / 4; ++step) {
          const int p = part * (kPartK / 4) + step;
          const VecB codes = LoadB(block + 64 * p);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const int8_t* q = a.q + (b * kGroupRows + r) * 32 + 4 * p;
            dot[r].Add(codes, LoadQuad(q), step);
          }
        }
      }
      const VecF scale = BlockScale<Format>(header, scales, part);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const float d_a = a.scale[b * kGroupRows + r];
        acc[r] = Fma(ToFloat(dot[r].total), Mul(scale, Set(d_a)), acc[r]);
      }
    }
    if constexpr (Format::kMinimum) {
      const VecF minimum = BlockMinimum<Format>(header, scales);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        acc[r] = Fma(minimum, Set(a.scaled_sum[b * kGroupRows + r]), acc[r]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (r < num_rows) Store(y + r * tile.y_stride, acc[r]);
  }
}

template <class Format>
inline void QuantLinear(const LinearTile& tile) {
  auto* starts = reinterpret_cast<int32_t*>(tile.scratch);
  for (int64_t row = 0; row < tile.num_rows; row += kQuantRows) {
    const int64_t rows = SmallerOf(kQuantRows, tile.num_rows - row);
    const QuantizedRows a = tile.quantized.Rows(row, tile.cols);
    const int64_t place = row % a.group_rows;
    if constexpr (kOffsetLeft<Format> != 0) {
      if (a.group_rows == 16 && place == 0) DotStarts<Format>(tile, a, starts);
    }
    for (int64_t g = 0; g < tile.num_groups; ++g) {
      const uint8_t* group = tile.groups + g * tile.group_bytes;
      float* y = tile.y + row * tile.y_stride + g * kLanes;
      if (a.group_rows == 1) {
        QuantTile<Format, 1, 1>(tile, group, a, nullptr, y);
      } else if (rows > 4) {
        QuantTile<Format, kQuantRows, 16>(tile, group, a, starts + place, y, rows);
      } else if (rows > 2) {
        QuantTile<Format, 4, 16>(tile, group, a, starts + place, y, rows);
      } else {
        QuantTile<Format, 2, 16>(tile, group, a, starts + place, y, rows);
      }
    }
  }
}

// The weights of a group in a type of plain floats. At(k) returns those of its 16 outputs at k.
template <class T>
struct FloatWeights {
  const uint8_t* group = nullptr;

  const T* Address(int64_t k) const { return reinterpret_cast<const T*>(group) + k * kLanes; }
  VecF At(int64_t k) { return Load(Address(k)); }
};
// The same for scaled e4m3. It keeps the scales of a block, so At is called for each k in order.
struct ScaledWeights {
  const uint8_t* group = nullptr;
  VecF scales = Zero();  // times 256

  const E4M3* Address(int64_t k) const {
    const uint8_t* block = group + k / kScaledBlock * kScaledGroupBytes;
    return reinterpret_cast<const E4M3*>(block + kScalesOfBlockBytes) + k % kScaledBlock * kLanes;
  }
  VecF At(int64_t k) {
    const E4M3* codes = Address(k);
    if (k % kScaledBlock == 0) {
      scales = Mul(Load(reinterpret_cast<const float*>(codes) - kLanes), Set(256.0f));
    }
    return Mul(scales, LoadFinite256ths(codes));
  }
};

// Computes kRows rows of kGroups groups together. Each output is its own chain of dependent fmas,
// so several chains are in flight.
template <class Weights, int kRows, int kGroups>
inline void FloatTile(const LinearTile& tile, const uint8_t* groups, const float* a, float* y) {
  VecF acc[kGroups][kRows];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[g][r] = Zero();
  }
  Weights weights[kGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) weights[g].group = groups + g * tile.group_bytes;
  for (int64_t k = 0; k < tile.cols; ++k) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      if constexpr (kRows == 1) {
        Prefetch(reinterpret_cast<const uint8_t*>(weights[g].Address(k)) + 1024);
      }
      const VecF w = weights[g].At(k);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        acc[g][r] = Fma(w, Set(a[r * tile.cols + k]), acc[g][r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) Store(y + r * tile.y_stride + g * kLanes, acc[g][r]);
  }
}

template <class Weights, int kGroups>
inline void FloatGroups(const LinearTile& tile, int64_t group) {
  const uint8_t* groups = tile.groups + group * tile.group_bytes;
  for (int64_t row = 0; row < tile.num_rows;) {
    const int64_t left = tile.num_rows - row;
    const float* a = tile.input + row * tile.cols;
    float* y = tile.y + row * tile.y_stride + group * kLanes;
    if (left >= 4) {
      constexpr int kSide = kTileVectors / 4 < kGroups ? kTileVectors / 4 : kGroups;
      for (int g = 0; g < kGroups; g += kSide) {
        FloatTile<Weights, 4, kSide>(tile, groups + g * tile.group_bytes, a, y + g * kLanes);
      }
      row += 4;
    } else {
      FloatTile<Weights, 1, kGroups>(tile, groups, a, y);
      row += 1;
    }
  }
}

template <class Weights>
inline void FloatLinear(const LinearTile& tile) {
  int64_t group = 0;
  for (; group + 4 <= tile.num_groups; group += 4) FloatGroups<Weights, 4>(tile, group);
  for (; group < tile.num_groups; ++group) FloatGroups<Weights, 1>(tile, group);
}

// Returns y / (1 + e^-x), which is y times the logistic function of x.
inline VecF TimesLogistic(VecF y, VecF x) { return Div(y, Add(Set(1.0f), Exp(Sub(Zero(), x)))); }

// Returns y times the normal distribution function of y. With t = |y|, the tail probability beyond
// t is e^(-t^2 / 2) * u * p(u), where u = 1 / (1 + 0.34 t). This is the form of Hastings
// (Abramowitz and Stegun 7.1.26). The polynomial p was fitted by least squares until all peaks of
// the relative error were 2.5e-8 for t up to 13.2. For larger t, Exp gives 0.
inline VecF Gelu(VecF y) {
  constexpr float kP[] = {0.135618612f, 0.136146918f,  0.114933215f, 0.116455756f,  -0.0474335551f,
                          0.206305459f, -0.276894301f, 0.141390994f, -0.0265230667f};
  const VecF t = FromBits(AndI(Bits(y), SetI(0x7fffffff)));
  const VecF u = Div(Set(1.0f), Fma(Set(0.34f), t, Set(1.0f)));
  VecF p = Set(kP[8]);
#pragma GCC unroll 8
  for (int i = 7; i >= 0; --i) p = Fma(p, u, Set(kP[i]));
  const VecF beyond = Mul(Exp(Mul(Mul(t, t), Set(-0.5f))), Mul(u, p));
  return Mul(y, Select(Less(y, Zero()), beyond, Sub(Set(1.0f), beyond)));
}

// Returns GELU of y by the tanh formula. (1 + tanh(x)) / 2 is the logistic function of 2 x.
inline VecF GeluTanh(VecF y) {
  constexpr float kTwice = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  const VecF cube = Mul(Mul(y, y), y);
  return TimesLogistic(y, Mul(Set(kTwice), Fma(Set(0.044715f), cube, y)));
}

inline VecF Activate(Activation activation, VecF y) {
  switch (activation) {
    case Activation::kNone:
      return y;
    case Activation::kGelu:
      return Gelu(y);
    case Activation::kGeluTanh:
    case Activation::kGeluTanhMul:
      return GeluTanh(y);
    case Activation::kSiluMul:
      return TimesLogistic(y, y);
    case Activation::kClampedSiluMul:
      return TimesLogistic(y, Mul(y, Set(kClampedSiluAlpha)));
  }
  return y;
}

// Returns y between -limit and limit. NaN stays NaN, because Min and Max then return their second
// argument.
inline VecF Clamp(VecF y, float limit) { return Min(Set(limit), Max(Set(-limit), y)); }

void Epilogue(const EpilogueRow& row) {
  for (int64_t i = 0; i < row.count; i += kLanes) {
    const int n = static_cast<int>(SmallerOf(kLanes, row.count - i));
    VecF y = LoadN(row.y + i, n);
    if (row.bias != nullptr) y = Add(y, LoadN(row.bias + i, n));
    const bool clamped = row.activation == Activation::kClampedSiluMul;
    if (clamped) y = Min(Set(row.activation_limit), y);
    y = Activate(row.activation, y);
    if (row.up != nullptr) {
      VecF up = LoadN(row.up + i, n);
      if (row.up_bias != nullptr) up = Add(up, LoadN(row.up_bias + i, n));
      if (clamped) up = Add(Clamp(up, row.activation_limit), Set(1.0f));
      y = Mul(y, up);
    }
    if (row.soft_cap > 0.0f) y = SoftCap(y, row.soft_cap);
    if (row.residual != nullptr) y = Add(y, LoadN(row.residual + i, n));
    StoreN(row.out + i, y, n);
  }
}
