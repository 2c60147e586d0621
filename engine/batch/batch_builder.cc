#include "engine/batch/batch_builder.h"

#include <algorithm>
#include <span>

#include "base/check.h"

namespace quire::engine {

void BatchBuilder::Build(const StepPlan& plan, ModelInput& input) const {
  input.token_ids.clear();
  input.positions.clear();
  input.query_starts.assign(1, 0);
  input.query_lens.clear();
  input.context_lens.clear();
  input.logit_rows.clear();
  for (const StepPlanEntry& entry : plan.entries) {
    // A backend that runs a step ahead draws on the device; here every token is on the host.
    QUIRE_CHECK(entry.token_from_previous < 0);
    const std::vector<int32_t>& tokens = entry.sequence->tokens;
    const int64_t end = entry.first_position + entry.num_tokens;
    QUIRE_CHECK(end <= static_cast<int64_t>(tokens.size()));
    for (int64_t position = entry.first_position; position < end; ++position) {
      if (position >= end - entry.num_logit_rows) {
        input.logit_rows.push_back(static_cast<int32_t>(input.token_ids.size()));
      }
      input.token_ids.push_back(tokens[position]);
      input.positions.push_back(static_cast<int32_t>(position));
    }
    input.query_starts.push_back(static_cast<int32_t>(input.token_ids.size()));
    input.query_lens.push_back(entry.num_tokens);
    input.context_lens.push_back(static_cast<int32_t>(end));
  }
  input.groups.resize(1);
  BuildGroup(plan, 0, input.groups[0]);
  input.copies = plan.copies;
}

void BatchBuilder::BuildGroup(const StepPlan& plan, int32_t kv_group, GroupInput& group) const {
  const int64_t block_size = blocks_.block_size();
  group.slot_mapping.clear();
  group.max_blocks_per_seq = 0;
  for (const StepPlanEntry& entry : plan.entries) {
    const std::span<const int32_t> table = blocks_.Table(entry.sequence->id, kv_group);
    group.max_blocks_per_seq =
        std::max(group.max_blocks_per_seq, static_cast<int64_t>(table.size()));
    for (int64_t i = 0; i < entry.num_tokens; ++i) {
      const int64_t position = entry.first_position + i;
      group.slot_mapping.push_back(table[position / block_size] * block_size +
                                   position % block_size);
    }
  }
  group.block_table.assign(plan.entries.size() * group.max_blocks_per_seq, 0);
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const std::span<const int32_t> table = blocks_.Table(plan.entries[i].sequence->id, kv_group);
    std::ranges::copy(table, group.block_table.begin() + i * group.max_blocks_per_seq);
  }
}

}  // namespace quire::engine
