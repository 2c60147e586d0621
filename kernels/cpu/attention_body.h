// Attention over the paged cache, written once for every ISA; see kernel_bodies.h.
//
// A row is one pair of query token and head. Online softmax (arXiv:1805.02867) folds the keys of a
// row in spans of kSpanKeys, inside segments of kSegmentKeys, inside super-segments of
// kSuperSegmentKeys. All of them begin at absolute multiples of their lengths. Each segment begins
// with a new state. The segments of a super-segment are merged in order, then the super-segments of
// the row. So whole super-segments can be folded without the other keys of the row. Rows are
// processed together only to share the loads of K and V; the fold of a row does not depend on other
// rows. A key that a row may not see does not enter the maximum of the row, and the row does not
// read V of that key.

constexpr int kSpanTiles = 4;
static_assert(kSpanKeys == kSpanTiles * kLanes);
static_assert(kSegmentKeys % kSpanKeys == 0);

// The online-softmax state of one row. Floats 0 and 1 hold the maximum and the sum of the weights.
// The weighted sum of V begins at float 16.
struct State {
  float* p;
  float& maximum() const { return p[0]; }
  float& sum() const { return p[1]; }
  float* values() const { return p + 16; }
};

inline float ExpOne(float x) { return Lane0(Exp(Set(x))); }

// Returns true if the row has seen no key.
inline bool IsEmpty(State state) { return state.maximum() == -kInfinity && state.sum() == 0.0f; }

inline void ClearState(State state, int64_t value_dim) {
  const int64_t count = StateFloats(value_dim);
  for (int64_t i = 0; i < count; i += kLanes) Store(state.p + i, Zero());
  state.maximum() = -kInfinity;
}

inline void CopyState(State to, State from, int64_t value_dim) {
  const int64_t count = StateFloats(value_dim);
  for (int64_t i = 0; i < count; i += kLanes) Store(to.p + i, Load(from.p + i));
}

// Merges the state `from` of a later segment into `to`. If the row saw no key in that segment, `to`
// does not change. Not inlined, because g++ 12 does not inline Exp in Weigh if this file contains
// inlined copies of MergeState.
[[gnu::noinline]] void MergeState(State to, State from, int64_t value_dim) {
  if (IsEmpty(from)) return;
  if (IsEmpty(to)) {
    CopyState(to, from, value_dim);
    return;
  }
  const float maximum = to.maximum() > from.maximum() ? to.maximum() : from.maximum();
  const float keep = ExpOne(to.maximum() - maximum), take = ExpOne(from.maximum() - maximum);
  to.maximum() = maximum;
  to.sum() = __builtin_fmaf(from.sum(), take, to.sum() * keep);
  for (int64_t i = 0; i < value_dim; i += kLanes) {
    Store(to.values() + i,
          Fma(Load(from.values() + i), Set(take), Mul(Load(to.values() + i), Set(keep))));
  }
}

// Folds the segments of one row, in order.
struct RowFold {
  State super;  // the current super-segment, as far as it is folded
  State total;  // all earlier super-segments
  int64_t value_dim;

  void Begin(State first) const {
    total.maximum() = -kInfinity;
    total.sum() = 0.0f;
    CopyState(super, first, value_dim);
  }
  void Add(State from, int64_t segment) const {
    if (segment * kSegmentKeys % kSuperSegmentKeys != 0) return MergeState(super, from, value_dim);
    MergeState(total, super, value_dim);
    CopyState(super, from, value_dim);
  }
  State Result() const {
    if (IsEmpty(total)) return super;
    MergeState(total, super, value_dim);
    return total;
  }
};

// Writes the output of a row. `v_scale` is the scale of the cache's values.
inline void FinishRow(State state, const float* sink, float v_scale, int64_t value_dim,
                      float* out) {
  float sum = state.sum();
  float keep = 1.0f;
  if (sink != nullptr) {
    const float maximum = state.maximum() > *sink ? state.maximum() : *sink;
    keep = ExpOne(state.maximum() - maximum);
    sum = __builtin_fmaf(sum, keep, ExpOne(*sink - maximum));
  }
  const VecF factor = Set(keep * v_scale), total = Set(sum);
  for (int64_t i = 0; i < value_dim; i += kLanes) {
    const VecF value = Div(Mul(Load(state.values() + i), factor), total);
    StoreN(out + i, value, static_cast<int>(SmallerOf(kLanes, value_dim - i)));
  }
}

// Pointers to the K and V tiles of a span. A tile has 16 tokens.
template <class T>
struct Span {
  const T* k[kSpanTiles];
  const T* v[kSpanTiles];
};

// The number of adjacent vectors that each row accumulates at once when kRows rows are processed
// together. All rows together have at most 1.5 * kTileVectors accumulators. The registers suffice
// for more than kTileVectors accumulators, because all rows share the loaded vectors of keys or
// values.
template <int kRows>
constexpr int kSide = kTileVectors * 3 / 2 / kRows >= 4   ? 4
                      : kTileVectors * 3 / 2 / kRows >= 2 ? 2
                                                          : 1;

// Computes the scores of kTiles tiles, from tile `first` on, for kRows rows. The score of a key is
// the chain acc = fma(query[d], K[d], acc) over d.
template <class T, int kRows, int kTiles>
inline void ScoreTiles(const float* const* query, const Span<T>& span, int first, int64_t key_dim,
                       float* scores) {
  VecF acc[kRows][kTiles];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) acc[r][t] = Zero();
  }
  for (int64_t d = 0; d < key_dim; ++d) {
    VecF keys[kTiles];
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) keys[t] = Load(span.k[first + t] + d * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const VecF q = Set(query[r][d]);
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t) acc[r][t] = Fma(q, keys[t], acc[r][t]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t)
      Store(scores + r * kSpanKeys + (first + t) * kLanes, acc[r][t]);
  }
}

// Computes the scores of the first `count` tiles of a span. May also compute the tile after them,
// because tiles are computed two or four at a time.
template <class T, int kRows>
inline void Score(const float* const* query, const Span<T>& span, int count, int64_t key_dim,
                  float* scores) {
  int first = 0;
  if constexpr (kSide<kRows> == 4) {
    for (; first + 2 < count; first += 4) {
      ScoreTiles<T, kRows, 4>(query, span, first, key_dim, scores);
    }
  }
  if constexpr (kSide<kRows> >= 2) {
    for (; first + 1 < count; first += 2) {
      ScoreTiles<T, kRows, 2>(query, span, first, key_dim, scores);
    }
  }
  for (; first < count; ++first) ScoreTiles<T, kRows, 1>(query, span, first, key_dim, scores);
}

// For each row, adds weights[key] * V[key] to `values` for each key in [begin, end), one key after
// another. Computes only kVectors vectors of the head, from element i on.
template <class T, int kRows, int kVectors>
inline void AddVectors(float* const* values, const float* weights, const Span<T>& span,
                       int64_t value_dim, int64_t i, int begin, int end) {
  VecF acc[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) acc[r][n] = Load(values[r] + i + n * kLanes);
  }
  for (int key = begin; key < end; ++key) {
    const T* v = span.v[key / kLanes] + key % kLanes * value_dim + i;
    VecF value[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      // If the head ends inside a vector, kVectors is 1.
      value[n] = kVectors > 1 || value_dim - i >= kLanes
                     ? Load(v + n * kLanes)
                     : LoadN(v, static_cast<int>(value_dim - i));
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const VecF weight = Set(weights[r * kSpanKeys + key]);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) acc[r][n] = Fma(weight, value[n], acc[r][n]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) Store(values[r] + i + n * kLanes, acc[r][n]);
  }
}

template <class T, int kRows>
inline void AddValues(float* const* values, const float* weights, const Span<T>& span,
                      int64_t value_dim, int begin, int end) {
  if (begin >= end) return;
  int64_t i = 0;
  for (; i + kSide<kRows> * kLanes <= value_dim; i += kSide<kRows> * kLanes) {
    AddVectors<T, kRows, kSide<kRows>>(values, weights, span, value_dim, i, begin, end);
  }
  for (; i < value_dim; i += kLanes) {
    AddVectors<T, kRows, 1>(values, weights, span, value_dim, i, begin, end);
  }
}

// Rows first, first + 1, and so on. Indexing this type reads no memory.
struct AdjacentRows {
  int64_t first;
  int64_t operator[](int r) const { return first + r; }
};

template <class T>
struct AttentionKernel {
  const AttentionCall& call;
  const AttentionWork& work;
  int64_t key_dim = call.cache.key_dim;
  int64_t value_dim = call.cache.value_dim;
  int64_t group = call.num_heads / call.cache.num_kv_heads;
  int64_t rows = work.num_queries * group;
  int64_t state_floats = StateFloats(value_dim);
  float* segment_states = work.scratch;
  float* fold_states = work.scratch + rows * state_floats;

  AttentionQuery Query(int64_t row) const {
    if (work.queries != nullptr) return work.queries[row / group];
    return {work.first_row + row / group, work.first_position + row / group};
  }
  int64_t Position(int64_t row) const { return Query(row).position; }
  int64_t Head(int64_t row) const { return work.kv_head * group + row % group; }
  // Returns the place of the row among all rows of the step.
  int64_t Place(int64_t row) const { return Query(row).row * call.num_heads + Head(row); }
  RowFold Fold(int64_t row) const {
    float* const states = fold_states + 2 * row * state_floats;
    return {{states}, {states + state_floats}, value_dim};
  }
  int64_t FirstKey(int64_t row) const { return call.pattern.FirstKey(Position(row)); }

  // Turns the raw scores of keys [begin, end) of a span into weights, and sets the weights of all
  // other keys of the span to 0. Rescales the state of the row to the new maximum, and adds the
  // weights to the sum in the state. kWhole means that the row sees the whole span, so nothing is
  // masked.
  template <bool kWhole>
  void Weigh(int64_t row, int64_t first_key, int begin, int end, State state, float* scores) const {
    VecF s[kSpanTiles];
    VecF largest = Set(-kInfinity);
#pragma GCC unroll 4
    for (int t = 0; t < kSpanTiles; ++t) {
      if constexpr (kWhole) {
        s[t] = Logits(Load(scores + t * kLanes), row, first_key + t * kLanes);
        largest = Max(s[t], largest);
        continue;
      }
      s[t] = Set(-kInfinity);
      if (end <= t * kLanes || begin >= (t + 1) * kLanes) continue;
      s[t] = Logits(Load(scores + t * kLanes), row, first_key + t * kLanes);
      s[t] = Select(Seen(t, begin, end), s[t], Set(-kInfinity));
      largest = Max(s[t], largest);
    }
    const float span_maximum = Largest(largest);
    const float maximum = state.maximum() > span_maximum ? state.maximum() : span_maximum;
    if (state.sum() != 0.0f && state.maximum() != maximum) {
      const VecF shrink = Exp(Set(state.maximum() - maximum));
      state.sum() *= Lane0(shrink);
      for (int64_t i = 0; i < value_dim; i += kLanes) {
        Store(state.values() + i, Mul(Load(state.values() + i), shrink));
      }
    }
    state.maximum() = maximum;
    VecF sum = Zero();
#pragma GCC unroll 4
    for (int t = 0; t < kSpanTiles; ++t) {
      VecF weights = Zero();
      if constexpr (kWhole) {
        weights = Exp(Sub(s[t], Set(maximum)));
      } else if (end > t * kLanes && begin < (t + 1) * kLanes) {
        weights = Select(Seen(t, begin, end), Exp(Sub(s[t], Set(maximum))), Zero());
      }
      Store(scores + t * kLanes, weights);
      sum = Add(sum, weights);
    }
    state.sum() += Sum(sum);
  }

  // Returns the mask of the lanes of tile t whose keys are in [begin, end) of the span.
  static Mask Seen(int t, int begin, int end) {
    const int64_t low = LargerOf(0, begin - t * kLanes), high = SmallerOf(kLanes, end - t * kLanes);
    return LaneRange(static_cast<int>(low), static_cast<int>(high));
  }

  // Applies scale, soft cap and ALiBi to the raw scores of 16 keys from `first_key`.
  VecF Logits(VecF s, int64_t row, int64_t first_key) const {
    s = Mul(s, Set(call.scale * call.cache.k_scale));
    if (call.soft_cap > 0.0f) s = SoftCap(s, call.soft_cap);
    if (call.slopes != nullptr) {
      static constexpr float kRamp[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
      const int64_t origin = call.alibi_is_rounded ? 0 : Position(row);
      const VecF distance = Add(Load(kRamp), Set(static_cast<float>(first_key - origin)));  // exact
      const VecF slope = Set(call.slopes[Head(row)]);
      s = call.alibi_is_rounded
              ? Fma(RoundedToBf16(Mul(slope, RoundedToBf16(distance))), Set(call.scale), s)
              : Fma(slope, distance, s);
    }
    return s;
  }

  static VecF RoundedToBf16(VecF values) {
    Brain rounded[kLanes];
    Store(rounded, values);
    return Load(rounded);
  }

  // Folds a span into rows row[0] to row[kRows - 1]. Rows is AdjacentRows or a pointer.
  template <int kRows, class Rows>
  void SpanRows(Rows row, int64_t first_key, const Span<T>& span) const {
    int begin[kRows], end[kRows];
    int last_begin = 0, first_end = kSpanKeys, last_end = 0;
    const float* query[kRows];
    float* values[kRows];
    for (int r = 0; r < kRows; ++r) {
      const int64_t low = LargerOf(0, FirstKey(row[r]) - first_key);
      const int64_t high = LargerOf(0, SmallerOf(kSpanKeys, Position(row[r]) - first_key + 1));
      begin[r] = static_cast<int>(SmallerOf(low, high));
      end[r] = static_cast<int>(high);
      last_begin = begin[r] > last_begin ? begin[r] : last_begin;
      first_end = end[r] < first_end ? end[r] : first_end;
      last_end = end[r] > last_end ? end[r] : last_end;
      query[r] = call.query + Place(row[r]) * key_dim;
      values[r] = State{segment_states + row[r] * state_floats}.values();
    }
    if (last_end == 0) return;
    alignas(64) float scores[kRows * kSpanKeys];
    Score<T, kRows>(query, span, (last_end + kLanes - 1) / kLanes, key_dim, scores);
    for (int r = 0; r < kRows; ++r) {
      const State state{segment_states + row[r] * state_floats};
      if (begin[r] == 0 && end[r] == kSpanKeys) {
        Weigh<true>(row[r], first_key, 0, kSpanKeys, state, scores + r * kSpanKeys);
      } else if (begin[r] < end[r]) {
        Weigh<false>(row[r], first_key, begin[r], end[r], state, scores + r * kSpanKeys);
      }
    }
    // Adds the values of each row in the order of the keys. The keys that all rows see are added
    // for all rows together. The keys before and after this common range are added row by row.
    const bool common = last_begin < first_end;
    for (int r = 0; r < kRows; ++r) {
      AddValues<T, 1>(&values[r], scores + r * kSpanKeys, span, value_dim, begin[r],
                      common ? last_begin : end[r]);
    }
    if (!common) return;
    AddValues<T, kRows>(values, scores, span, value_dim, last_begin, first_end);
    for (int r = 0; r < kRows; ++r) {
      AddValues<T, 1>(&values[r], scores + r * kSpanKeys, span, value_dim, first_end, end[r]);
    }
  }

  // Returns true if the rule hides the listed span that begins at `first_key` from the row. A span
  // after the row's position is not hidden by the rule; SpanRows masks it.
  bool IsHole(int64_t row, int64_t first_key) const {
    return !call.pattern.SeesBlock(Position(row), first_key, Head(row));
  }

  // Folds a span into up to three rows.
  template <class Rows>
  void LastRows(int64_t count, Rows row, int64_t first_key, const Span<T>& span) const {
    switch (count) {
      case 3:
        return SpanRows<3>(row, first_key, span);
      case 2:
        return SpanRows<2>(row, first_key, span);
      case 1:
        return SpanRows<1>(row, first_key, span);
      default:
        return;
    }
  }

  // Folds a span into all rows that see it, four at a time.
  void AllRows(int64_t first_key, const Span<T>& span) const {
    if (work.tiles == nullptr) {
      int64_t row = 0;
      for (; row + 4 <= rows; row += 4) SpanRows<4>(AdjacentRows{row}, first_key, span);
      return LastRows(rows - row, AdjacentRows{row}, first_key, span);
    }
    int64_t taken[4];
    int num_taken = 0;
    for (int64_t row = 0; row < rows; ++row) {
      if (IsHole(row, first_key)) continue;
      taken[num_taken++] = row;
      if (num_taken < 4) continue;
      SpanRows<4, const int64_t*>(taken, first_key, span);
      num_taken = 0;
    }
    LastRows<const int64_t*>(num_taken, taken, first_key, span);
  }

  // Clears the states and folds a segment's spans into them. Listed spans begin at
  // work.tiles[next_tile]. Returns the index of the first one after it.
  int64_t Segment(int64_t segment, int64_t next_tile) const {
    for (int64_t r = 0; r < rows; ++r) {
      ClearState(State{segment_states + r * state_floats}, value_dim);
    }
    const int64_t context_end = Position(rows - 1) + 1;
    const int64_t begin = LargerOf(segment * kSegmentKeys, FirstKey(0) / kSpanKeys * kSpanKeys);
    const int64_t end = SmallerOf((segment + 1) * kSegmentKeys, context_end);
    const CacheLayout& cache = call.cache;
    const int64_t first_row = work.kv_head * cache.block_size;
    int64_t first_key = begin;
    for (;; first_key += kSpanKeys) {
      if (work.tiles != nullptr) {
        if (next_tile == work.num_tiles) break;
        first_key = work.tiles[next_tile].tile * int64_t{kSpanKeys};
      }
      if (first_key >= end) break;
      ++next_tile;
      // Tiles past the end of the context repeat the last tile. The scores of these repeats are
      // masked.
      Span<T> span;
      for (int t = 0; t < kSpanTiles; ++t) {
        const int64_t key = SmallerOf(first_key + t * kLanes, (end - 1) / kLanes * kLanes);
        const int64_t block = work.block_table[key / cache.block_size];
        const int64_t row = first_row + key % cache.block_size;
        span.k[t] =
            reinterpret_cast<const T*>(cache.keys) + block * cache.block_stride + row * key_dim;
        span.v[t] =
            reinterpret_cast<const T*>(cache.values) + block * cache.block_stride + row * value_dim;
      }
      AllRows(first_key, span);
    }
    return next_tile;
  }

  void Run() const {
    int64_t next_tile = 0;
    for (int64_t segment = work.segment_begin; segment < work.segment_end; ++segment) {
      next_tile = Segment(segment, next_tile);
      for (int64_t r = 0; r < rows; ++r) {
        const State from{segment_states + r * state_floats};
        if (work.partials != nullptr) {
          float* to = work.partials + ((segment - work.segment_begin) * rows + r) * state_floats;
          CopyState(State{to}, from, value_dim);
        } else if (segment == work.segment_begin) {
          Fold(r).Begin(from);
        } else {
          Fold(r).Add(from, segment);
        }
      }
    }
    if (work.partials != nullptr) return;
    for (int64_t r = 0; r < rows; ++r) {
      FinishRow(Fold(r).Result(), call.sinks == nullptr ? nullptr : call.sinks + Head(r),
                call.cache.v_scale, value_dim, call.out + Place(r) * value_dim);
    }
  }
};

void Attention(const AttentionCall& call, const AttentionWork& work) {
  switch (call.cache.dtype) {
    case DType::kF16:
      return AttentionKernel<Half>{call, work}.Run();
    case DType::kBF16:
      return AttentionKernel<Brain>{call, work}.Run();
    case DType::kF8E4M3:
      return AttentionKernel<E4M3>{call, work}.Run();
    default:
      return AttentionKernel<float>{call, work}.Run();
  }
}

void MergeAttention(const AttentionMerge& merge) {
  const RowFold fold{
      {merge.scratch}, {merge.scratch + StateFloats(merge.value_dim)}, merge.value_dim};
  const SegmentStates runs[] = {merge.shared, merge.own};
  int64_t segment = merge.first_segment;
  for (const SegmentStates& states : runs) {
    for (int64_t s = 0; s < states.count; ++s, ++segment) {
      const State from{const_cast<float*>(states.first + s * states.stride)};
      if (segment == merge.first_segment) {
        fold.Begin(from);
      } else {
        fold.Add(from, segment);
      }
    }
  }
  FinishRow(fold.Result(), merge.sink, merge.v_scale, merge.value_dim, merge.out);
}
