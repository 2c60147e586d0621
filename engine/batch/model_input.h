#pragma once

// One step as a model sees it: the tokens of all sequences, one after another, and the cache blocks
// of each sequence's context.

#include <cstdint>
#include <vector>

#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/shift_keys.h"
#include "kernels/tensor_view.h"

namespace quire::engine {

// A step's view of one KV group's cache.
struct GroupInput {
  std::vector<int64_t> slot_mapping;  // [num_tokens], block_id * block_size + offset
  // [num_seqs, max_blocks_per_seq]. Entries are 0 where a sequence has no block in the group:
  // before the group's window and after the last block.
  std::vector<int32_t> block_table;
  int64_t max_blocks_per_seq = 0;
  std::vector<kernels::BlockCopy> copies;  // run before the step's KV writes
};

// Vectors are reused from step to step, so nothing is allocated after warm-up.
struct ModelInput {
  std::vector<int32_t> token_ids;  // [num_tokens]
  // [num_tokens], or empty if the host knows every token. An entry is -1 for a token that the host
  // knows. Otherwise the previous step drew the token, and the entry is the token's index in
  // `drawn`.
  std::vector<int32_t> token_sources;
  kernels::TensorView drawn;  // int32 [num_drawn] in the backend's memory; used with token_sources
  std::vector<int32_t> positions;     // [num_tokens], in the cache
  std::vector<int32_t> query_starts;  // [num_seqs + 1], each sequence's first token
  std::vector<int32_t> query_lens;    // [num_seqs]
  std::vector<int32_t> context_lens;  // [num_seqs], this step's tokens included
  std::vector<int32_t> logit_rows;    // [num_logit_rows], tokens whose logits are wanted, ascending
  std::vector<GroupInput> groups;     // by KV group; see KvCache
  std::vector<kernels::KeyShift> shifts;  // of group 0, run after the copies
  // The keys of group 0 that decodes share; see AttentionPlanArgs.
  std::vector<int32_t> shared_seqs;
  std::vector<kernels::SharedKeys> shared_keys;
  // Changes of the sampler, which the upload of the step carries too
  // (kernels::PreparedSampler::Prepare).
  kernels::TableUpdate sampler_update;

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_seqs() const { return static_cast<int64_t>(query_lens.size()); }
  int64_t num_logit_rows() const { return static_cast<int64_t>(logit_rows.size()); }
};

}  // namespace quire::engine
