// RMSNorm and LayerNorm of one row, written once for every ISA; see kernel_bodies.h. Sums run in 16
// lanes over the row and end in the fixed tree of Sum().

void Norm(const NormRow& row) {
  const float count = static_cast<float>(row.count);
  VecF mean = Zero();
  if (row.layer_norm) {
    VecF sum = Zero();
    for (int64_t i = 0; i < row.count; i += kLanes) {
      sum = Add(sum, LoadN(row.input + i, static_cast<int>(SmallerOf(kLanes, row.count - i))));
    }
    mean = Set(Sum(sum) / count);
  }
  VecF squares = Zero();
  for (int64_t i = 0; i < row.count; i += kLanes) {
    const int n = static_cast<int>(SmallerOf(kLanes, row.count - i));
    const VecF centered = Select(LaneRange(0, n), Sub(LoadN(row.input + i, n), mean), Zero());
    squares = Fma(centered, centered, squares);
  }
  const VecF inverse = Set(1.0f / __builtin_sqrtf(Sum(squares) / count + row.eps));
  for (int64_t i = 0; i < row.count; i += kLanes) {
    const int n = static_cast<int>(SmallerOf(kLanes, row.count - i));
    VecF y = Mul(Mul(Sub(LoadN(row.input + i, n), mean), inverse), LoadN(row.weight + i, n));
    if (row.bias != nullptr) y = Add(y, LoadN(row.bias + i, n));
    StoreN(row.out + i, y, n);
  }
}
