#include "engine/batch/lone_input.h"

#include <numeric>

namespace quire::engine {

ModelInput MakeLoneInput(std::span<const int32_t> tokens, int64_t first_position,
                         int64_t num_logit_rows, int32_t block_size) {
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
  // A token's slot is its position: the blocks lie one after another.
  GroupInput& group = input.groups.emplace_back();
  group.slot_mapping.assign(input.positions.begin(), input.positions.end());
  group.max_blocks_per_seq = (context_len + block_size - 1) / block_size;
  group.block_table.resize(group.max_blocks_per_seq);
  std::iota(group.block_table.begin(), group.block_table.end(), 0);
  return input;
}

}  // namespace quire::engine
