// The router of a mixture of experts, and the sum over the chosen experts. Written once for every
// ISA; see kernel_bodies.h.

inline bool GoesBefore(float a, float b) { return a > b || (a != a && b == b); }

// Writes the values by which the experts [first, first + n) are ranked.
inline void RankingValues(const RouteRow& row, int64_t first, int n, float* values) {
  VecF value = LoadN(row.logits + first, n);
  if (row.kind == ExpertWeights::kNormedLogistic) {
    value = TimesLogistic(Set(1.0f), value);
    if (row.choice_bias != nullptr) value = Add(value, LoadN(row.choice_bias + first, n));
  }
  StoreN(values, value, n);
}

void Route(const RouteRow& row) {
  // The experts kept so far are sorted, and `weights` holds their values. Among equal values the
  // earlier expert, which has the lower id, stays first.
  int64_t kept = 0;
  float values[kLanes];
  for (int64_t e = 0; e < row.num_experts; ++e) {
    if (e % kLanes == 0) {
      RankingValues(row, e, static_cast<int>(SmallerOf(kLanes, row.num_experts - e)), values);
    }
    const float value = values[e % kLanes];
    int64_t at = kept;
    while (at > 0 && GoesBefore(value, row.weights[at - 1])) --at;
    if (at == row.num_chosen) continue;
    if (kept < row.num_chosen) ++kept;
    for (int64_t i = kept - 1; i > at; --i) {
      row.experts[i] = row.experts[i - 1];
      row.weights[i] = row.weights[i - 1];
    }
    row.experts[at] = static_cast<int32_t>(e);
    row.weights[at] = value;
  }
  for (int64_t i = 0; i < kept; ++i) row.weights[i] = row.logits[row.experts[i]];

  const bool normed = row.kind == ExpertWeights::kNormedLogistic;
  if (row.kind == ExpertWeights::kLogistic || normed) {
    for (int64_t i = 0; i < kept; i += kLanes) {
      const int n = static_cast<int>(SmallerOf(kLanes, kept - i));
      const VecF logit = LoadN(row.weights + i, n);
      StoreN(row.weights + i, TimesLogistic(Set(1.0f), logit), n);
    }
    if (!normed) return;
    float sum = 0.0f;
    for (int64_t i = 0; i < kept; ++i) sum += row.weights[i];
    sum += kLeastLogisticSum;
    for (int64_t i = 0; i < kept; i += kLanes) {
      const int n = static_cast<int>(SmallerOf(kLanes, kept - i));
      StoreN(row.weights + i, Div(LoadN(row.weights + i, n), Set(sum)), n);
    }
    return;
  }
  const VecF largest = Set(row.weights[0]);
  const bool over_chosen = row.kind == ExpertWeights::kSoftmaxOfChosen;
  const float* summed = over_chosen ? row.weights : row.logits;
  const int64_t num_summed = over_chosen ? kept : row.num_experts;
  float sum = 0.0f;
  for (int64_t i = 0; i < num_summed; i += kLanes) {
    const int n = static_cast<int>(SmallerOf(kLanes, num_summed - i));
    float powers[kLanes];
    StoreN(powers, Exp(Sub(LoadN(summed + i, n), largest)), n);
    for (int lane = 0; lane < n; ++lane) sum += powers[lane];
  }
  for (int64_t i = 0; i < kept; i += kLanes) {
    const int n = static_cast<int>(SmallerOf(kLanes, kept - i));
    const VecF power = Exp(Sub(LoadN(row.weights + i, n), largest));
    StoreN(row.weights + i, Div(power, Set(sum)), n);
  }
}

void Combine(const CombineRow& row) {
  for (int64_t i = 0; i < row.count; i += kLanes) {
    const int n = static_cast<int>(SmallerOf(kLanes, row.count - i));
    VecF sum = Zero();
    for (int64_t j = 0; j < row.num_rows; ++j) {
      const float* y = row.y + row.rows[j] * row.count;
      sum = Fma(Set(row.weights[j]), LoadN(y + i, n), sum);
    }
    if (row.residual != nullptr) sum = Add(sum, LoadN(row.residual + i, n));
    StoreN(row.out + i, sum, n);
  }
}
