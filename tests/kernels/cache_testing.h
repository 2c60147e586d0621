#pragma once

// Helpers of the CPU tests of attention, QkvPost and ShiftKeys: random sequences, and a paged cache
// of one layer that stores their keys and values.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/backend.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/float8.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/rounding.h"

namespace quire::testing {

struct HeadShape {
  int64_t num_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 16;
  int64_t block_size = 16;
  kernels::DType dtype = kernels::DType::kF32;
  int64_t other_value_dim = 0;  // elements of a value; 0: head_dim, as of a key
  kernels::CacheScales scales = {};

  int64_t value_dim() const { return other_value_dim != 0 ? other_value_dim : head_dim; }
};

// Returns `x` rounded to `dtype`, as a cache of that dtype stores it.
inline float Stored(kernels::DType dtype, float x) {
  switch (dtype) {
    case kernels::DType::kF16:
      return kernels::F16ToF32(kernels::F32ToF16(x));
    case kernels::DType::kBF16:
      return kernels::Bf16ToF32(kernels::F32ToBf16(x));
    case kernels::DType::kF8E4M3:
      return kernels::E4M3ToF32(kernels::F32ToE4M3(x));
    default:
      return x;
  }
}

// Returns an element of a cache, counted from the first one of its keys.
inline float StoredAt(const kernels::CacheView& cache, int64_t element) {
  switch (cache.dtype()) {
    case kernels::DType::kF16:
      return kernels::F16ToF32(cache.keys.data<uint16_t>()[element]);
    case kernels::DType::kBF16:
      return kernels::Bf16ToF32(cache.keys.data<uint16_t>()[element]);
    case kernels::DType::kF8E4M3:
      return kernels::E4M3ToF32(cache.keys.data<uint8_t>()[element]);
    default:
      return cache.keys.data<float>()[element];
  }
}

// A sequence: its rows of Q, K and V, each [tokens, heads, elements of a head], and its blocks in
// the cache.
struct SequenceData {
  std::vector<float> query, key, value;
  std::vector<int32_t> blocks;
  int64_t length = 0;
};

inline SequenceData RandomSequence(const HeadShape& shape, int64_t length, uint64_t seed,
                                   std::vector<int32_t> blocks) {
  return {.query = Normal(seed, length * shape.num_heads * shape.head_dim),
          .key = Normal(seed + 1, length * shape.num_kv_heads * shape.head_dim),
          .value = Normal(seed + 2, length * shape.num_kv_heads * shape.value_dim()),
          .blocks = std::move(blocks),
          .length = length};
}

// A paged cache of one layer on one backend. Every unwritten element is NaN. There are gaps between
// the blocks. In the cache of a model, these gaps hold the blocks of other layers.
class PoisonedCache {
 public:
  PoisonedCache(kernels::Backend& backend, const HeadShape& shape, int64_t num_blocks)
      : backend_(backend), shape_(shape) {
    const int64_t stride =
        3 * shape.num_kv_heads * shape.block_size * (shape.head_dim + shape.value_dim());
    buffer_ = *backend.Allocate(num_blocks * stride * SizeOf(shape.dtype));
    std::memset(buffer_.data(), 0xff, static_cast<size_t>(buffer_.bytes()));  // NaN in each dtype
    view_ = kernels::CacheView(buffer_.data(), shape.dtype, num_blocks, shape.num_kv_heads,
                               shape.block_size, shape.head_dim, shape.value_dim(), stride);
    view_.scales = shape.scales;
  }

  // Writes tokens [begin, end) of `sequence` with QkvPost. Returns the query rows that QkvPost
  // wrote.
  std::vector<float> Write(const SequenceData& sequence, int64_t begin, int64_t end,
                           kernels::QkvPostArgs args = {}) {
    const int64_t count = end - begin;
    const int64_t q_size = shape_.num_heads * shape_.head_dim;
    const int64_t k_size = shape_.num_kv_heads * shape_.head_dim;
    const int64_t v_size = shape_.num_kv_heads * shape_.value_dim();
    std::vector<float> rows;
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    const auto append = [&rows](const std::vector<float>& from, int64_t token, int64_t size) {
      rows.insert(rows.end(), from.begin() + token * size, from.begin() + (token + 1) * size);
    };
    for (int64_t t = begin; t < end; ++t) {
      append(sequence.query, t, q_size);
      append(sequence.key, t, k_size);
      append(sequence.value, t, v_size);
      positions.push_back(static_cast<int32_t>(t));
      slots.push_back(sequence.blocks[t / shape_.block_size] * shape_.block_size +
                      t % shape_.block_size);
    }
    Owned<float> qkv = F32({count, q_size + k_size + v_size}, std::move(rows));
    Owned<float> query = F32({count, shape_.num_heads, shape_.head_dim}, std::nanf(""));
    Owned<int32_t> position = I32({count}, positions);
    args.query = query.view;
    args.kv_cache = view_;
    args.qkv = qkv.view;
    args.positions = position.view;
    args.slot_mapping = kernels::TensorView(slots.data(), kernels::DType::kI64, {count});
    const absl::Status status = backend_.QkvPost(args);
    EXPECT_TRUE(status.ok()) << status;
    return query.values;
  }

  struct Chunk {
    const SequenceData* sequence;
    int64_t begin, end;
  };
  // Runs attention for chunks of several sequences in one step. Returns the output rows in the
  // order of `chunks`. shared_seqs and shared_keys are those of
  // AttentionPlanArgs.
  std::vector<float> Attend(const std::vector<Chunk>& chunks, kernels::PagedAttentionArgs args = {},
                            const std::vector<int32_t>& shared_seqs = {},
                            const std::vector<kernels::SharedKeys>& shared_keys = {}) {
    const int64_t q_size = shape_.num_heads * shape_.head_dim;
    std::vector<float> rows;
    std::vector<int32_t> contexts, queries, starts = {0}, table;
    size_t max_blocks = 1;
    for (const Chunk& chunk : chunks) {
      max_blocks = std::max(max_blocks, chunk.sequence->blocks.size());
    }
    for (const Chunk& chunk : chunks) {
      const std::vector<float>& query = chunk.sequence->query;
      rows.insert(rows.end(), query.begin() + chunk.begin * q_size,
                  query.begin() + chunk.end * q_size);
      contexts.push_back(static_cast<int32_t>(chunk.end));
      queries.push_back(static_cast<int32_t>(chunk.end - chunk.begin));
      starts.push_back(starts.back() + queries.back());
      std::vector<int32_t> blocks = chunk.sequence->blocks;
      blocks.resize(max_blocks, 1 << 30);  // the unused tail is never read
      table.insert(table.end(), blocks.begin(), blocks.end());
    }
    const auto num_seqs = static_cast<int64_t>(chunks.size());
    const int64_t tokens = starts.back();
    Owned<float> in = F32({tokens, shape_.num_heads, shape_.head_dim}, std::move(rows));
    Owned<float> out = F32({tokens, shape_.num_heads, shape_.value_dim()}, std::nanf(""));
    Owned<int32_t> block_table =
        I32({num_seqs, static_cast<int64_t>(max_blocks)}, std::move(table));
    const auto plan = backend_.Plan(
        {.context_lens = contexts,
         .query_lens = queries,
         .heads = {static_cast<int32_t>(shape_.num_heads),
                   static_cast<int32_t>(shape_.num_kv_heads), static_cast<int32_t>(shape_.head_dim),
                   static_cast<int32_t>(shape_.value_dim())},
         .pattern = args.pattern,
         .alibi_is_rounded = args.alibi_is_rounded,
         .shared_seqs = shared_seqs,
         .shared_keys = shared_keys});
    EXPECT_TRUE(plan.ok()) << plan.status();
    Owned<int32_t> context_lens = I32({num_seqs}, contexts),
                   query_starts = I32({num_seqs + 1}, starts);
    args.out = out.view;
    args.query = in.view;
    args.kv_cache = view_;
    args.block_table = block_table.view;
    args.context_lens = context_lens.view;
    args.query_starts = query_starts.view;
    args.plan = *plan;
    const absl::Status status = backend_.PagedAttention(args);
    EXPECT_TRUE(status.ok()) << status;
    return out.values;
  }

  const kernels::CacheView& view() const { return view_; }
  int64_t bytes() const { return buffer_.bytes(); }
  const HeadShape& shape() const { return shape_; }

 private:
  kernels::Backend& backend_;
  const HeadShape shape_;
  kernels::DeviceBuffer buffer_;
  kernels::CacheView view_;
};

}  // namespace quire::testing
