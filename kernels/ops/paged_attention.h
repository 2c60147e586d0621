#pragma once

// Computes the attention of one step's query tokens over the paged KV cache: prefill, chunked
// prefill and decode.
//   out[t, h] = softmax(scale * query[t, h] . K^T) . V, from kv head h / (num_heads / num_kv_heads)
//   Causal: query token i of a sequence sees positions 0 .. context_len - query_len + i, inclusive.
//
//   ALiBi adds slope * (key - query) to a score, where key and query are positions in the sequence.
//   With alibi_is_rounded it adds scale * bf16(slope * bf16(key)), as Falcon's published code does.
//   The use of `key` instead of `key - query` shifts all scores of a query by one constant, which
//   softmax ignores. The roundings do change the scores.
//
// Layout:  row-major, last dimension contiguous; a block id is a row of kv_cache.
// Numeric: scores and sums are in float32, with one rounding on store. The op's test derives the
//          tolerance. The CPU and CUDA's plain kernel fold keys in tiles and segments whose borders
//          are absolute positions, so a query's bits do not depend on chunking, batch or threads.
//          On tensor cores the bits depend on chunk and batch, because both decide how the step is
//          divided. With CudaBackendOptions::deterministic they depend only on the chunk.
// Cost:    a decode is bound by reading 2 * sum(context_len) * num_kv_heads * head_dim elements.
// Async:   enqueued; every view must stay alive until Backend::Synchronize().
// Errors:  InvalidArgument, before enqueuing, for arguments that are not as listed below. Internal
//          if the launch is refused. A fault inside the kernel appears at the next Synchronize().
// Sources: PagedAttention arXiv:2309.06180, online softmax 1805.02867, FlashAttention-2 2307.08691,
//          ALiBi 2108.12409.

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

// The input of Backend::Plan for one step. All of it is on the host.
struct AttentionPlanArgs {
  std::span<const int32_t> context_lens;  // [num_seqs], this step's tokens included
  std::span<const int32_t> query_lens;    // [num_seqs]
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t window = 0;  // as in PagedAttentionArgs
};

// InvalidArgument unless num_heads is a multiple of num_kv_heads and each query_len is within its
// context_len.
absl::Status Validate(const AttentionPlanArgs& args);

// A backend's division of one step's attention into work; made by Backend::Plan.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
};

struct PagedAttentionArgs {
  TensorView out;       // [num_tokens, num_heads, head_dim]  f32|f16|bf16, written
  TensorView query;     // shape and dtype of out; head_dim a multiple of 8, at most 256
  TensorView kv_cache;  // [num_blocks, 2, num_kv_heads, block_size, head_dim]  f32|f16|bf16; K then
                        // V; the order inside one (block, K|V, head) is the backend's own,
                        // and blocks may be strided
  TensorView block_table;   // [num_seqs, max_blocks_per_seq]  int32; unused tail is never read
  TensorView context_lens;  // [num_seqs]  int32, in tokens, this step's included
  TensorView query_starts;  // [num_seqs + 1]  int32, each sequence's first row in query
  TensorView alibi_slopes;  // [num_heads]  f32; empty: no ALiBi
  bool alibi_is_rounded = false;
  TensorView sinks;                     // [num_heads]  f32 logits; empty: no sinks
  float scale = 0.0f;                   // usually 1 / sqrt(head_dim)
  float soft_cap = 0.0f;                // 0: none; applied before the bias
  int32_t window = 0;                   // latest tokens that a query sees, itself included; 0: all
  const AttentionPlan* plan = nullptr;  // from Backend::Plan, for this step and window
};
absl::Status Validate(const PagedAttentionArgs& args);

}  // namespace quire::kernels
