#pragma once

// Turns a step's plan into the model's input.

#include <cstdint>
#include <vector>

#include "engine/batch/model_input.h"
#include "engine/batch/shared_prefixes.h"
#include "engine/kv/block_manager.h"
#include "engine/scheduler/step_plan.h"

namespace quire::engine {

// To be used only on the step thread.
class BatchBuilder {
 public:
  // `blocks` must outlive this. Decodes share keys in steps in which this saves at least
  // `least_saved_keys` keys (SharedPrefixes). 0: they never do.
  explicit BatchBuilder(const BlockManager& blocks, int64_t least_saved_keys = 0)
      : blocks_(blocks), least_saved_keys_(least_saved_keys), prefixes_(blocks.block_size()) {}

  // Overwrites all members of `input` but `drawn`. Sequences are in the order of the plan's
  // entries. The logit rows of an entry are its last num_logit_rows tokens. A token that only the
  // device knows gets the id 0.
  void Build(const StepPlan& plan, ModelInput& input);

  // Returns how many prefixes were shared, and how many keys this saved, in all steps.
  int64_t num_shared_prefixes() const { return num_shared_prefixes_; }
  int64_t num_saved_keys() const { return num_saved_keys_; }

 private:
  void BuildGroup(const StepPlan& plan, int32_t kv_group, GroupInput& group) const;

  void ShareKeys(const StepPlan& plan, ModelInput& input);

  const BlockManager& blocks_;
  const int64_t least_saved_keys_;
  SharedPrefixes prefixes_;
  std::vector<PrefixRow> rows_;  // kept for its capacity
  int64_t num_shared_prefixes_ = 0, num_saved_keys_ = 0;
};

}  // namespace quire::engine
