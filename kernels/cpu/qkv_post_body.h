// Computes QkvPost for one token and writes the keys and values to the cache. Written once for
// every ISA; see kernel_bodies.h. Each rotated element takes one multiply and one fma.

// Returns `n` elements of the row, from element `at` on, after bias and clipping. NaN stays NaN.
inline VecF Biased(const QkvPostRow& row, int64_t at, int n) {
  VecF x = LoadN(row.qkv + at, n);
  if (row.bias != nullptr) x = Add(x, LoadN(row.bias + at, n));
  if (row.clip > 0.0f) x = Max(Set(-row.clip), Min(Set(row.clip), x));
  return x;
}

// Calls visit(h, x) for each head h of the `num_heads` heads of `head_dim` elements that begin at
// element `first` of the row. x points to the elements of the head after bias, clipping and
// QK-norm. `norm` points to the weights of QK-norm; null if these heads have no QK-norm.
template <class Visit>
inline void ForEachHead(const QkvPostRow& row, int64_t first, int64_t num_heads, int64_t head_dim,
                        const float* norm, Visit visit) {
  const bool plain = row.bias == nullptr && row.clip == 0.0f && norm == nullptr;
  const auto scale_of = [&row](int64_t at, int64_t count) {
    return ScaleOf([&row, at](int64_t i, int n) { return Biased(row, at + i, n); }, count,
                   row.layer_norm, row.norm_eps);
  };
  NormScale scale = {};
  if (norm != nullptr && !row.norm_by_head) scale = scale_of(first, num_heads * head_dim);
  for (int64_t h = 0; h < num_heads; ++h) {
    const int64_t at = first + h * head_dim;
    if (plain) {
      visit(h, row.qkv + at);
      continue;
    }
    if (norm != nullptr && row.norm_by_head) scale = scale_of(at, head_dim);
    float x[256];
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      const int n = static_cast<int>(SmallerOf(kLanes, head_dim - i));
      VecF value = Biased(row, at + i, n);
      if (norm != nullptr) {
        const int64_t weight = row.norm_by_head ? i : h * head_dim + i;
        value = scale.Apply(value, LoadN(norm + weight, n));
      }
      StoreN(x + i, value, n);
    }
    visit(h, x);
  }
}

inline void RotateHead(const float* x, const QkvPostRow& row, float* out) {
  const int64_t half = row.rope_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float cos = row.cos_sin[2 * i], sin = row.cos_sin[2 * i + 1];
    const int64_t first = row.interleaved ? 2 * i : i;
    const int64_t second = row.interleaved ? 2 * i + 1 : i + half;
    const float a = x[first], b = x[second];
    out[first] = __builtin_fmaf(a, cos, -(b * sin));
    out[second] = __builtin_fmaf(a, sin, b * cos);
  }
  for (int64_t i = row.rope_dim; i < row.cache.key_dim; ++i) out[i] = x[i];
}

// Returns the start of `kv_head` in this token's block. `part` is the keys or the values of the
// cache, with `head_dim` elements per head and token.
template <class T>
inline T* CacheHead(const QkvPostRow& row, uint8_t* part, int64_t kv_head, int64_t head_dim) {
  const CacheLayout& cache = row.cache;
  return reinterpret_cast<T*>(part) + row.slot / cache.block_size * cache.block_stride +
         kv_head * cache.block_size * head_dim;
}

// Returns what is stored for elements `x` of a cache of T with this scale.
template <class T>
inline VecF Scaled(VecF x, float /*scale: 1*/) {
  return x;
}
// DividedForE4M3 of kernels/quant/float8.h, for 16 elements.
template <>
inline VecF Scaled<E4M3>(VecF x, float scale) {
  const VecF quotient = Min(Max(Div(x, Set(scale)), Set(-448.0f)), Set(448.0f));
  const Mask is_finite = Less(Sub(x, x), Set(1.0f));
  return Select(is_finite, quotient, x);
}

template <class T>
inline void WriteCache(const QkvPostRow& row) {
  const CacheLayout& cache = row.cache;
  const int64_t key_dim = cache.key_dim, value_dim = cache.value_dim;
  const int64_t offset = row.slot % cache.block_size;
  const int64_t first_key = row.num_heads * key_dim;
  ForEachHead(row, first_key, cache.num_kv_heads, key_dim, row.key_norm,
              [&](int64_t h, const float* x) {
                float key[256];
                RotateHead(x, row, key);
                T* k = CacheHead<T>(row, cache.keys, h, key_dim) +
                       offset / kLanes * kLanes * key_dim + offset % kLanes;
                for (int64_t i = 0; i < key_dim; i += kLanes) {
                  const int n = static_cast<int>(SmallerOf(kLanes, key_dim - i));
                  T narrow[16];
                  StoreN(narrow, Scaled<T>(LoadN(key + i, n), cache.k_scale), n);
                  for (int j = 0; j < n; ++j) k[(i + j) * kLanes] = narrow[j];
                }
              });
  const int64_t first_value = first_key + cache.num_kv_heads * key_dim;
  ForEachHead(row, first_value, cache.num_kv_heads, value_dim, nullptr,
              [&](int64_t h, const float* x) {
                T* v = CacheHead<T>(row, cache.values, h, value_dim) + offset * value_dim;
                for (int64_t i = 0; i < value_dim; i += kLanes) {
                  const int n = static_cast<int>(SmallerOf(kLanes, value_dim - i));
                  const VecF value = Mul(LoadN(x + i, n), Set(row.value_scale));
                  StoreN(v + i, Scaled<T>(value, cache.v_scale), n);
                }
              });
}

void QkvPost(const QkvPostRow& row) {
  const int64_t key_dim = row.cache.key_dim;
  ForEachHead(row, 0, row.num_heads, key_dim, row.query_norm, [&](int64_t h, const float* x) {
    float* const query = row.query + h * key_dim;
    RotateHead(x, row, query);
    if (row.query_scale == 1.0f) return;
    for (int64_t i = 0; i < key_dim; i += kLanes) {
      const int n = static_cast<int>(SmallerOf(kLanes, key_dim - i));
      StoreN(query + i, Mul(LoadN(query + i, n), Set(row.query_scale)), n);
    }
  });
  switch (row.cache.dtype) {
    case DType::kF16:
      return WriteCache<Half>(row);
    case DType::kBF16:
      return WriteCache<Brain>(row);
    case DType::kF8E4M3:
      return WriteCache<E4M3>(row);
    default:
      return WriteCache<float>(row);
  }
}
