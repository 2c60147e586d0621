// Rotary embedding and the cache write of one token, written once for every ISA; see
// kernel_bodies.h. Each rotated element is one multiply and one fma.

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

template <class T>
inline void WriteCache(const QkvPostRow& row, const float* key, const float* value,
                       int64_t kv_head) {
  const CacheLayout& cache = row.cache;
  const int64_t head_dim = cache.head_dim;
  const int64_t head_elements = cache.block_size * head_dim;
  const int64_t block = row.slot / cache.block_size;
  const int64_t offset = row.slot % cache.block_size;
  T* k = reinterpret_cast<T*>(cache.data) + block * cache.block_stride + kv_head * head_elements;
  T* v = k + cache.num_kv_heads * head_elements;
  k += offset / kLanes * kLanes * head_dim + offset % kLanes;
  v += offset * head_dim;
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    const int n = static_cast<int>(SmallerOf(kLanes, head_dim - i));
    T narrow[16];
    StoreN(narrow, LoadN(key + i, n), n);
    for (int j = 0; j < n; ++j) k[(i + j) * kLanes] = narrow[j];
    StoreN(v + i, LoadN(value + i, n), n);
  }
}

void QkvPost(const QkvPostRow& row) {
  const int64_t head_dim = row.cache.head_dim;
  const float* x = row.qkv;
  for (int64_t h = 0; h < row.num_heads; ++h) {
    RotateHead(x + h * head_dim, row, head_dim, row.query + h * head_dim);
  }
  x += row.num_heads * head_dim;
  for (int64_t h = 0; h < row.cache.num_kv_heads; ++h) {
    float key[256];
    RotateHead(x + h * head_dim, row, head_dim, key);
    const float* value = x + (row.cache.num_kv_heads + h) * head_dim;
    switch (row.cache.dtype) {
      case DType::kF16:
        WriteCache<Half>(row, key, value, h);
        break;
      case DType::kBF16:
        WriteCache<Brain>(row, key, value, h);
        break;
      default:
        WriteCache<float>(row, key, value, h);
    }
  }
}
