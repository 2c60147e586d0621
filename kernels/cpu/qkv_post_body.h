// Computes QkvPost for one token and writes the keys and values to the cache. Written once for
// every ISA; see kernel_bodies.h. Each rotated element takes one multiply and one fma.

// Returns `n` elements of the row, from element `at` on, after bias and clipping. NaN stays NaN.
inline VecF Biased(const QkvPostRow& row, int64_t at, int n) {
  VecF x = LoadN(row.qkv + at, n);
  if (row.bias != nullptr) x = Add(x, LoadN(row.bias + at, n));
  if (row.clip > 0.0f) x = Max(Set(-row.clip), Min(Set(row.clip), x));
  return x;
}

// Calls visit(h, x) for each head h of the `num_heads` heads that begin at element `first` of the
// row. x points to the elements of the head after bias, clipping and QK-norm. `norm` points to the
// weights of QK-norm; null if these heads have no QK-norm.
template <class Visit>
inline void ForEachHead(const QkvPostRow& row, int64_t first, int64_t num_heads, const float* norm,
                        Visit visit) {
  const int64_t head_dim = row.cache.head_dim;
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

inline void RotateHead(const float* x, const QkvPostRow& row, int64_t head_dim, float* out) {
  const int64_t half = row.rope_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float cos = row.cos_sin[2 * i], sin = row.cos_sin[2 * i + 1];
    const int64_t first = row.interleaved ? 2 * i : i;
    const int64_t second = row.interleaved ? 2 * i + 1 : i + half;
    const float a = x[first], b = x[second];
    out[first] = __builtin_fmaf(a, cos, -(b * sin));
    out[second] = __builtin_fmaf(a, sin, b * cos);
  }
  for (int64_t i = row.rope_dim; i < head_dim; ++i) out[i] = x[i];
}

// Returns the start of K of one kv head in the block of this token, or the start of V if `value` is
// true.
template <class T>
inline T* CacheHead(const QkvPostRow& row, int64_t kv_head, bool value) {
  const CacheLayout& cache = row.cache;
  const int64_t block = row.slot / cache.block_size;
  const int64_t head = value ? cache.num_kv_heads + kv_head : kv_head;
  return reinterpret_cast<T*>(cache.data) + block * cache.block_stride +
         head * cache.block_size * cache.head_dim;
}

template <class T>
inline void WriteCache(const QkvPostRow& row) {
  const int64_t head_dim = row.cache.head_dim, num_kv_heads = row.cache.num_kv_heads;
  const int64_t offset = row.slot % row.cache.block_size;
  const int64_t first_key = row.num_heads * head_dim;
  ForEachHead(row, first_key, num_kv_heads, row.key_norm, [&](int64_t h, const float* x) {
    float key[256];
    RotateHead(x, row, head_dim, key);
    T* k = CacheHead<T>(row, h, false) + offset / kLanes * kLanes * head_dim + offset % kLanes;
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      const int n = static_cast<int>(SmallerOf(kLanes, head_dim - i));
      T narrow[16];
      StoreN(narrow, LoadN(key + i, n), n);
      for (int j = 0; j < n; ++j) k[(i + j) * kLanes] = narrow[j];
    }
  });
  const int64_t first_value = first_key + num_kv_heads * head_dim;
  ForEachHead(row, first_value, num_kv_heads, nullptr, [&](int64_t h, const float* x) {
    T* v = CacheHead<T>(row, h, true) + offset * head_dim;
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      const int n = static_cast<int>(SmallerOf(kLanes, head_dim - i));
      StoreN(v + i, LoadN(x + i, n), n);
    }
  });
}

void QkvPost(const QkvPostRow& row) {
  const int64_t head_dim = row.cache.head_dim;
  ForEachHead(row, 0, row.num_heads, row.query_norm, [&](int64_t h, const float* x) {
    float* const query = row.query + h * head_dim;
    RotateHead(x, row, head_dim, query);
    if (row.query_scale == 1.0f) return;
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      const int n = static_cast<int>(SmallerOf(kLanes, head_dim - i));
      StoreN(query + i, Mul(LoadN(query + i, n), Set(row.query_scale)), n);
    }
  });
  switch (row.cache.dtype) {
    case DType::kF16:
      return WriteCache<Half>(row);
    case DType::kBF16:
      return WriteCache<Brain>(row);
    default:
      return WriteCache<float>(row);
  }
}
