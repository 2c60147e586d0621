#include "engine/batch/batch_builder.h"

#include <algorithm>
#include <span>

#include "base/check.h"

namespace quire::engine {

void BatchBuilder::Build(const StepPlan& plan, ModelInput& input) {
  input.token_ids.clear();
  input.token_sources.clear();
  input.positions.clear();
  input.query_starts.assign(1, 0);
  input.query_lens.clear();
  input.context_lens.clear();
  input.logit_rows.clear();
  for (const StepPlanEntry& entry : plan.entries) {
    const std::vector<int32_t>& tokens = entry.sequence->tokens;
    const int32_t num_unknown = entry.token_from_previous >= 0 ? 1 : 0;
    const int32_t num_own = entry.num_own_tokens();
    QUIRE_CHECK(entry.first_index + num_own - num_unknown <= std::ssize(tokens));
    if (num_unknown > 0) {
      QUIRE_CHECK(entry.num_tokens == 1);
      input.token_sources.resize(input.token_ids.size(), -1);
      input.token_sources.push_back(entry.token_from_previous);
    }
    for (int32_t i = 0; i < entry.num_tokens; ++i) {
      if (i >= entry.num_tokens - entry.num_logit_rows) {
        input.logit_rows.push_back(static_cast<int32_t>(input.token_ids.size()));
      }
      if (i >= num_own) {
        input.token_ids.push_back(plan.drafts[entry.first_draft + i - num_own]);
      } else {
        input.token_ids.push_back(num_unknown > 0 ? 0 : tokens[entry.first_index + i]);
      }
      input.positions.push_back(static_cast<int32_t>(entry.first_position + i));
    }
    input.query_starts.push_back(static_cast<int32_t>(input.token_ids.size()));
    input.query_lens.push_back(entry.num_tokens);
    input.context_lens.push_back(static_cast<int32_t>(entry.first_position + entry.num_tokens));
  }
  if (!input.token_sources.empty()) input.token_sources.resize(input.token_ids.size(), -1);
  input.groups.resize(blocks_.num_kv_groups());
  for (int32_t group = 0; group < blocks_.num_kv_groups(); ++group) {
    BuildGroup(plan, group, input.groups[group]);
  }
  input.shifts = plan.shifts;
  ShareKeys(plan, input);
}

void BatchBuilder::ShareKeys(const StepPlan& plan, ModelInput& input) {
  input.shared_seqs.clear();
  input.shared_keys.clear();
  if (least_saved_keys_ == 0) return;
  rows_.clear();
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const StepPlanEntry& entry = plan.entries[i];
    if (entry.num_tokens != 1) continue;
    const auto num_whole = static_cast<size_t>(entry.first_position / blocks_.block_size());
    rows_.push_back({.seq = static_cast<int32_t>(i),
                     .blocks = blocks_.Table(entry.sequence->id).first(num_whole)});
  }
  prefixes_.Find(rows_, least_saved_keys_);
  input.shared_seqs.assign(prefixes_.seqs().begin(), prefixes_.seqs().end());
  input.shared_keys.assign(prefixes_.keys().begin(), prefixes_.keys().end());
  num_shared_prefixes_ += std::ssize(input.shared_keys);
  num_saved_keys_ += prefixes_.num_saved();
}

void BatchBuilder::BuildGroup(const StepPlan& plan, int32_t kv_group, GroupInput& group) const {
  const int64_t block_size = blocks_.block_size();
  group.slot_mapping.clear();
  group.max_blocks_per_seq = 0;
  for (const StepPlanEntry& entry : plan.entries) {
    const std::span<const int32_t> table = blocks_.Table(entry.sequence->id);
    group.max_blocks_per_seq =
        std::max(group.max_blocks_per_seq, blocks_.RunIn(kv_group, entry.sequence->id).end);
    for (int64_t i = 0; i < entry.num_tokens; ++i) {
      const int64_t position = entry.first_position + i;
      const int32_t block = blocks_.BlockIn(kv_group, table[position / block_size]);
      QUIRE_CHECK(block >= 0) << "position " << position << " has no place in group " << kv_group;
      group.slot_mapping.push_back(block * block_size + position % block_size);
    }
  }
  group.block_table.assign(plan.entries.size() * group.max_blocks_per_seq, 0);
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const SequenceId id = plan.entries[i].sequence->id;
    const std::span<const int32_t> table = blocks_.Table(id);
    const BlockTable::Run run = blocks_.RunIn(kv_group, id);
    int32_t* row = group.block_table.data() + i * group.max_blocks_per_seq;
    for (int64_t b = run.begin; b < run.end; ++b) row[b] = blocks_.BlockIn(kv_group, table[b]);
  }
  group.copies.clear();
  for (const kernels::BlockCopy& copy : plan.copies) {
    group.copies.push_back({.source = blocks_.BlockIn(kv_group, copy.source),
                            .destination = blocks_.BlockIn(kv_group, copy.destination)});
  }
}

}  // namespace quire::engine
