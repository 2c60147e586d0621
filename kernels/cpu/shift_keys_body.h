// Rotates cached keys back by a distance. Each ISA compiles this file; see kernel_bodies.h. A
// vector holds one dimension of a tile's sixteen tokens. Each element takes one multiply and one
// fma.

template <class T>
inline void TurnTile(T* tile, const KeyShiftWork& work) {
  const int64_t half = work.rope_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const VecF cos = Set(work.cos_sin[2 * i] * work.inverse_scale);
    const VecF sin = Set(work.cos_sin[2 * i + 1] * work.inverse_scale);
    T* const first = tile + (work.interleaved ? 2 * i : i) * kLanes;
    T* const second = tile + (work.interleaved ? 2 * i + 1 : i + half) * kLanes;
    const VecF a = LoadN(first, kLanes), b = LoadN(second, kLanes);
    StoreN(first, Fma(a, cos, Mul(b, sin)), kLanes);
    StoreN(second, Fma(b, cos, Mul(a, Sub(Zero(), sin))), kLanes);
  }
}

template <class T>
inline void TurnBlock(const KeyShiftWork& work) {
  const CacheLayout& cache = work.cache;
  T* head = reinterpret_cast<T*>(cache.keys) + work.block * cache.block_stride;
  const int64_t tiles = cache.num_kv_heads * (cache.block_size / kLanes);
  for (int64_t i = 0; i < tiles; ++i) TurnTile(head + i * kLanes * cache.key_dim, work);
}

void ShiftKeys(const KeyShiftWork& work) {
  switch (work.cache.dtype) {
    case DType::kF16:
      return TurnBlock<Half>(work);
    case DType::kBF16:
      return TurnBlock<Brain>(work);
    case DType::kF8E4M3:
      return TurnBlock<E4M3>(work);
    default:
      return TurnBlock<float>(work);
  }
}
