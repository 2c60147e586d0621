#include "engine/batch/lone_input.h"

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

ModelInput MakeIdleDecodes(int64_t num_seqs, int32_t token, const KvCache& cache) {
  const auto size = static_cast<size_t>(num_seqs);
  ModelInput input;
  input.token_ids.assign(size, token);
  input.positions.assign(size, 0);
  input.query_starts.resize(size + 1);
  std::iota(input.query_starts.begin(), input.query_starts.end(), 0);
  input.query_lens.assign(size, 1);
  input.context_lens.assign(size, 1);
  input.logit_rows.resize(size);
  std::iota(input.logit_rows.begin(), input.logit_rows.end(), 0);
  for (size_t i = 0; i < cache.groups().size(); ++i) {
    GroupInput& group = input.groups.emplace_back();
    group.max_blocks_per_seq = 1;
    group.block_table.assign(size, 0);
    group.slot_mapping.assign(size, -1);
  }
  return input;
}

}  // namespace quire::engine
