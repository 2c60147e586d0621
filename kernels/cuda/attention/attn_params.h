#pragma once

// The parameters of AttnKernel (paged_attention.cuh).

#include <cstdint>

#include "kernels/cuda/attention/attention_items.h"
#include "kernels/ops/attention_tiles.h"

namespace quire::kernels::cuda {

template <typename T>
struct AttnParams {
  T* out;          // [num_tokens, num_heads, head_dim]
  const T* query;  // shape of out
  // [num_blocks, 2, num_kv_heads, block_size, head_dim], blocks block_bytes apart; elements of T,
  // or of E4M3 for the kernels of fp8_attention.cuh
  const void* kv;
  const int32_t* block_table;   // [num_seqs, max_blocks]
  const int32_t* query_starts;  // [num_seqs + 1]
  const float* slopes;          // [num_heads]; null: no ALiBi
  const float* sinks;           // [num_heads]; null: no sinks
  const float* key_norms;       // [num_kv_heads], CacheView::key_norms; null: no key is skipped
  const AttentionItem* items;
  const int32_t* block_starts;  // of the ranges of items
  AttentionQueue* queue;        // null: each block has one range
  int num_ranges;               // with a queue
  const SeenTile* tiles;
  const SharedMember* members;
  float* partial_out;
  float* partial_lse;
  int64_t value_offset, head_stride;  // elements
  uint32_t block_bytes;               // from one block of kv to the next
  int num_heads, group, log2_block_size, max_blocks;
  AttentionPattern pattern;
  // The op's scale times log2(e), or with a soft cap, the op's scale / soft_cap; with an fp8 cache,
  // also times E4M3In<T>::kFactor (attn_fp8.cuh) and the cache's scale of K.
  float scale;
  float score_factor;  // |the op's scale| * log2(e), for the bound of attn_horizon.cuh; with an fp8
                       // cache, also times the cache's scale of K
  float soft_cap;      // 0: no soft cap
  // The factor of the output with an fp8 cache: kFactor times the cache's scale of V. Unused with
  // others.
  float value_factor;
};

}  // namespace quire::kernels::cuda
