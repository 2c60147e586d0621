#include "engine/batch/lone_input.h"

#include <algorithm>
#include <numeric>

#include "base/math.h"

namespace quire::engine {

ModelInput MakeLoneInput(std::span<const int32_t> tokens, int64_t first_position,
                         int64_t num_logit_rows, const KvCache& cache) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  const auto context_len = static_cast<int32_t>(first_position + num_tokens);
  ModelInput input;
  input.token_ids.assign(tokens.begin(), tokens.end());
  input.positions.resize(tokens.size());
  std::iota(input.positions.begin(), input.positions.end(), static_cast<int32_t>(first_position));
  input.query_starts = {0, num_tokens};
  input.query_lens = {num_tokens};
  input.context_lens = {context_len};
  input.logit_rows.resize(num_logit_rows);
  std::iota(input.logit_rows.begin(), input.logit_rows.end(),
            num_tokens - static_cast<int32_t>(num_logit_rows));
  const int64_t block_size = cache.shape().block_size;
  for (const KvGroup& from : cache.groups()) {
    GroupInput& group = input.groups.emplace_back();
    group.max_blocks_per_seq = base::CeilDiv(context_len, block_size);
    for (int64_t i = 0; i < group.max_blocks_per_seq; ++i) {
      group.block_table.push_back(static_cast<int32_t>(i % from.num_blocks));
    }
    for (const int32_t position : input.positions) {
      group.slot_mapping.push_back(group.block_table[position / block_size] * block_size +
                                   position % block_size);
    }
  }
  return input;
}

ModelInput MakeIdleInput(int64_t num_tokens, int64_t seq_len, int64_t num_logit_rows, int32_t token,
                         const KvCache& cache) {
  ModelInput input;
  const auto size = static_cast<size_t>(num_tokens);
  input.token_ids.assign(size, token);
  input.query_starts = {0};
  for (int64_t begin = 0; begin < num_tokens; begin += seq_len) {
    const auto len = static_cast<int32_t>(std::min(seq_len, num_tokens - begin));
    for (int32_t position = 0; position < len; ++position) input.positions.push_back(position);
    input.query_starts.push_back(input.query_starts.back() + len);
    input.query_lens.push_back(len);
    input.context_lens.push_back(len);
  }
  input.logit_rows.resize(static_cast<size_t>(num_logit_rows));
  std::iota(input.logit_rows.begin(), input.logit_rows.end(), 0);
  const int64_t blocks_per_seq =
      base::CeilDiv(std::min(seq_len, num_tokens), int64_t{cache.shape().block_size});
  for (size_t i = 0; i < cache.groups().size(); ++i) {
    GroupInput& group = input.groups.emplace_back();
    group.max_blocks_per_seq = blocks_per_seq;
    group.block_table.assign(input.query_lens.size() * static_cast<size_t>(blocks_per_seq), 0);
    group.slot_mapping.assign(size, -1);
  }
  return input;
}

ModelInput MakeSharingInput(int64_t num_seqs, int32_t token, const KvCache& cache) {
  constexpr auto kNumKeys = static_cast<int32_t>(kernels::AttentionPattern::kTileKeys);
  ModelInput input = MakeIdleInput(num_seqs, 1, num_seqs, token, cache);
  input.positions.assign(input.positions.size(), kNumKeys);
  input.context_lens.assign(input.context_lens.size(), kNumKeys + 1);
  for (GroupInput& group : input.groups) {
    group.max_blocks_per_seq = base::CeilDiv(kNumKeys + 1, cache.shape().block_size);
    group.block_table.assign(static_cast<size_t>(num_seqs * group.max_blocks_per_seq), 0);
  }
  input.shared_seqs.resize(static_cast<size_t>(num_seqs));
  std::iota(input.shared_seqs.begin(), input.shared_seqs.end(), 0);
  input.shared_keys = {{.count = static_cast<int32_t>(num_seqs), .num_keys = kNumKeys}};
  return input;
}

}  // namespace quire::engine
