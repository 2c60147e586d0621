// RMSNorm and LayerNorm of one row, written once for every ISA; see kernel_bodies.h. A sum over the
// row is kept in 16 lanes, and Sum() adds the lanes at the end in a fixed tree.

struct NormScale {
  VecF mean, inverse;

  VecF Apply(VecF x, VecF weight) const { return Mul(Mul(Sub(x, mean), inverse), weight); }
};

// Returns the NormScale of a row of `count` elements. load(i, n) must return elements i .. i + n -
// 1, followed by zeros.
template <class LoadAt>
inline NormScale ScaleOf(LoadAt load, int64_t count, bool layer_norm, float eps) {
  const float size = static_cast<float>(count);
  VecF mean = Zero();
  if (layer_norm) {
    VecF sum = Zero();
    for (int64_t i = 0; i < count; i += kLanes) {
      sum = Add(sum, load(i, static_cast<int>(SmallerOf(kLanes, count - i))));
    }
    mean = Set(Sum(sum) / size);
  }
  VecF squares = Zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const int n = static_cast<int>(SmallerOf(kLanes, count - i));
    const VecF centered = Select(LaneRange(0, n), Sub(load(i, n), mean), Zero());
    squares = Fma(centered, centered, squares);
  }
  return {mean, Set(1.0f / __builtin_sqrtf(Sum(squares) / size + eps))};
}

void Norm(const NormRow& row) {
  const float* input = row.input;
  if (row.residual != nullptr) {
    for (int64_t i = 0; i < row.count; i += kLanes) {
      const int n = static_cast<int>(SmallerOf(kLanes, row.count - i));
      StoreN(row.residual + i, Add(LoadN(row.residual + i, n), LoadN(input + i, n)), n);
    }
    input = row.residual;
  }
  const auto load = [input](int64_t i, int n) { return LoadN(input + i, n); };
  const NormScale scale = ScaleOf(load, row.count, row.layer_norm, row.eps);
  for (int64_t i = 0; i < row.count; i += kLanes) {
    const int n = static_cast<int>(SmallerOf(kLanes, row.count - i));
    VecF y = scale.Apply(load(i, n), LoadN(row.weight + i, n));
    if (row.bias != nullptr) y = Add(y, LoadN(row.bias + i, n));
    StoreN(row.out + i, y, n);
  }
}
