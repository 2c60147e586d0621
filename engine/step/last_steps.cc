#include "engine/step/last_steps.h"

#include <algorithm>
#include <iterator>

#include "base/logging.h"

namespace quire::engine {

void LastSteps::Note(const StepPlan& plan, absl::Time now) {
  Step step{.number = plan.step,
            .begin = now,
            .num_sequences = std::ssize(plan.entries),
            .num_tokens = plan.num_tokens,
            .num_copies = std::ssize(plan.copies)};
  for (const StepPlanEntry& entry : plan.entries) {
    step.longest_context =
        std::max<int64_t>(step.longest_context, entry.first_position + entry.num_tokens);
  }
  base::MutexLock lock(mu_);
  steps_[num_noted_++ % std::ssize(steps_)] = step;
}

void LastSteps::Log(absl::Time now) const {
  base::MutexLock lock(mu_);
  for (int64_t i = std::max<int64_t>(num_noted_ - std::ssize(steps_), 0); i < num_noted_; ++i) {
    const Step& step = steps_[i % std::ssize(steps_)];
    base::Log(base::LogLevel::kError, "engine", "one of the last steps",
              {{"step", step.number},
               {"ms_ago", absl::ToInt64Milliseconds(now - step.begin)},
               {"sequences", step.num_sequences},
               {"tokens", step.num_tokens},
               {"longest_context", step.longest_context},
               {"copies", step.num_copies}});
  }
}

}  // namespace quire::engine
