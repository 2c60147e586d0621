#pragma once

// Turns a step's plan into the model's input.

#include "engine/batch/model_input.h"
#include "engine/kv/block_manager.h"
#include "engine/scheduler/step_plan.h"

namespace quire::engine {

// To be used only on the step thread.
class BatchBuilder {
 public:
  // `blocks` must outlive this.
  explicit BatchBuilder(const BlockManager& blocks) : blocks_(blocks) {}

  // Overwrites all members of `input` but `drawn`. Sequences are in the order of the plan's
  // entries. The logit rows of an entry are its last num_logit_rows tokens. A token that only the
  // device knows gets the id 0.
  void Build(const StepPlan& plan, ModelInput& input) const;

 private:
  void BuildGroup(const StepPlan& plan, int32_t kv_group, GroupInput& group) const;

  const BlockManager& blocks_;
};

}  // namespace quire::engine
