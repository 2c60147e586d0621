#pragma once

// Computes the attention of the query tokens of one step over the paged KV cache. The op covers
// prefill, chunked prefill and decode.
//   out[t, h] = softmax(scale * query[t, h] . K^T) . V, from kv head h / (num_heads / num_kv_heads)
//   K and V are the numbers in the cache times its scales.
//   Query token i of a sequence has position p = context_len - query_len + i. Head h of the token
//   sees the keys for which pattern.Sees(p, key, h) is true.
//
//   ALiBi adds slope * (key - query) to a score, where key and query are positions in the sequence.
//   With alibi_is_rounded it adds scale * bf16(slope * bf16(key)), as Falcon's published code does.
//   With `key` instead of `key - query`, all scores of a query shift by one constant. Softmax
//   ignores the constant. The roundings do change the scores.
//
// Layout:  row-major, last dimension contiguous; a block id indexes the first dimension of the
//          cache's keys and of its values. A value may be longer or shorter than a key.
// Numeric: scores and sums are in float32, with one rounding on store. The test of the op derives
//          the tolerance. The CPU folds keys in spans of 64, these in segments of 256, and these in
//          super-segments of 4096. The plain CUDA kernel folds keys in tiles of 32, with other
//          bits. All borders are absolute positions. So on the CPU and in the plain CUDA kernel,
//          the bits of a query do not depend on chunking, batch or threads. On tensor cores the
//          bits depend on the chunk and on the batch, because both decide how the step is divided.
//          With CudaBackendOptions::deterministic they depend on neither.
// Cost:    a decode is bound by reading sum(context_len) * num_kv_heads * (key_dim + value_dim)
//          elements.
// Async:   enqueued; the memory of every view must stay alive until Backend::Synchronize().
// Errors:  InvalidArgument, before enqueuing, for arguments that are not as listed below. Internal
//          if the kernel launch is refused. A fault inside the kernel appears at the next
//          Synchronize().
// Sources: PagedAttention arXiv:2309.06180, online softmax 1805.02867, FlashAttention-2 2307.08691,
//          ALiBi 2108.12409.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cache_view.h"
#include "kernels/ops/attention_pattern.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

// Returns the pattern in words: "all keys", "a window of 128".
std::string ToString(const AttentionPattern& pattern);

// The heads of one layer's attention.
struct AttentionHeads {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t key_dim = 0;  // elements of a key, and of a query
  int32_t value_dim = 0;
  auto operator<=>(const AttentionHeads&) const = default;
};

// The properties of a layer on which its kernel and its plan depend. Layers with equal keys share
// plans.
struct AttentionPlanKey {
  AttentionHeads heads;
  AttentionPattern pattern;       // as in PagedAttentionArgs
  bool alibi_is_rounded = false;  // as in PagedAttentionArgs
  auto operator<=>(const AttentionPlanKey&) const = default;
};

// Sequences of a step that share their first num_keys keys: their block tables begin with the same
// blocks. Only blocks before the first key that a sequence sees may differ.
struct SharedKeys {
  // The sequences are shared_seqs[first] .. shared_seqs[first + count - 1] of AttentionPlanArgs.
  int32_t first = 0;
  int32_t count = 0;     // at least 2
  int32_t num_keys = 0;  // a multiple of AttentionPattern::kTileKeys; no query is at one of them
};

// The input of Backend::Plan for one step.
struct AttentionPlanArgs {
  std::span<const int32_t> context_lens;  // [num_seqs], in tokens, including those of this step
  std::span<const int32_t> query_lens;    // [num_seqs]
  AttentionHeads heads;
  AttentionPattern pattern;         // as in PagedAttentionArgs
  bool alibi_is_rounded = false;    // as in PagedAttentionArgs
  DType cache_dtype = DType::kF16;  // of the KV cache; only its size matters
  // If true, plans with equal launch keys (Backend::AppendLaunchKey) have equal kernel launches,
  // and every query_len must be 1.
  bool fixed_launches = false;
  // context_lens in the backend's memory, int32 [num_seqs]. Read only with fixed_launches, by
  // backends whose device makes such plans, when the enqueued work runs.
  TensorView device_context_lens;
  // The most tokens and sequences that a step may have, and the most keys of a sequence, for which
  // the backend allocates at the first call. Otherwise a call may allocate and wait. 0: unknown.
  int64_t most_tokens = 0, most_seqs = 0, most_context_len = 0;
  // A backend may read shared keys once for all their sequences, where Backend::LeastSavedKeys says
  // that it does. A sequence may be in `shared_seqs` once.
  std::span<const int32_t> shared_seqs;
  std::span<const SharedKeys> shared_keys;

  AttentionPlanKey key() const {
    return {.heads = heads, .pattern = pattern, .alibi_is_rounded = alibi_is_rounded};
  }
};

// Returns InvalidArgument if num_heads is not a multiple of num_kv_heads, if a query_len exceeds
// its context_len, if shared keys are not as described above, or if another argument is out of
// range.
absl::Status Validate(const AttentionPlanArgs& args);

class AttentionPlan;

struct PagedAttentionArgs {
  TensorView out;           // [num_tokens, num_heads, value_dim]  f32|f16|bf16, written
  TensorView query;         // [num_tokens, num_heads, key_dim]  dtype of out
  CacheView kv_cache;       // key_dim and value_dim are multiples of 8, at most 256
  TensorView block_table;   // [num_seqs, max_blocks_per_seq]  int32; the unused tail is never read
  TensorView context_lens;  // [num_seqs]  int32, in tokens, including the tokens of this step
  TensorView query_starts;  // [num_seqs + 1]  int32, the first row of each sequence in query
  TensorView alibi_slopes;  // [num_heads]  f32; empty: no ALiBi
  bool alibi_is_rounded = false;
  TensorView sinks;                     // [num_heads]  f32 logits; empty: no sinks
  float scale = 0.0f;                   // usually 1 / sqrt(key_dim)
  float soft_cap = 0.0f;                // score = cap * tanh(score / cap), before ALiBi; 0: no cap
  AttentionPattern pattern;             // the keys that a query sees
  const AttentionPlan* plan = nullptr;  // from Backend::Plan, for this step and key()

  AttentionPlanKey key() const {
    return {.heads = {.num_heads = static_cast<int32_t>(query.dim(1)),
                      .num_kv_heads = static_cast<int32_t>(kv_cache.num_kv_heads()),
                      .key_dim = static_cast<int32_t>(query.dim(2)),
                      .value_dim = static_cast<int32_t>(kv_cache.value_dim())},
            .pattern = pattern,
            .alibi_is_rounded = alibi_is_rounded};
  }
};
absl::Status Validate(const PagedAttentionArgs& args);

// The attention of one step, divided into pieces of work. Each backend defines a subclass, and
// Backend::Plan makes the plans.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;

  // Checks that `args` belong to the step of this plan, and that the block table is long enough.
  // The caller has already validated `args`. An InvalidArgument error names the difference.
  absl::Status CheckMatches(const PagedAttentionArgs& args) const;

  int64_t num_seqs() const { return static_cast<int64_t>(query_lens_.size()); }
  int64_t num_tokens() const { return num_tokens_; }
  int32_t query_len(int64_t seq) const { return query_lens_[static_cast<size_t>(seq)]; }
  int32_t context_len(int64_t seq) const { return context_lens_[static_cast<size_t>(seq)]; }
  int32_t num_heads() const { return key_.heads.num_heads; }
  int32_t num_kv_heads() const { return key_.heads.num_kv_heads; }
  int32_t group() const { return num_heads() / num_kv_heads(); }  // query heads of a KV head
  int32_t value_dim() const { return key_.heads.value_dim; }
  const AttentionPattern& pattern() const { return key_.pattern; }

 protected:
  // Copies `args`, which must be valid.
  void SetStep(const AttentionPlanArgs& args);

 private:
  std::vector<int32_t> query_lens_, context_lens_;
  int64_t num_tokens_ = 0;
  AttentionPlanKey key_;
};

}  // namespace quire::kernels
