#pragma once

// The latest steps that the device got, for the log of a server whose device is lost.

#include <array>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "engine/scheduler/step_plan.h"

namespace quire::engine {

// Thread-safe.
class LastSteps {
 public:
  // Notes a step that the device gets now.
  void Note(const StepPlan& plan, absl::Time now);
  // Logs the latest steps as errors, oldest first.
  void Log(absl::Time now) const;

 private:
  struct Step {
    int64_t number = 0;
    absl::Time begin;
    int64_t num_sequences = 0;
    int64_t num_tokens = 0;
    int64_t longest_context = 0;
    int64_t num_copies = 0;  // of blocks
  };

  mutable base::Mutex mu_;
  std::array<Step, 8> steps_ ABSL_GUARDED_BY(mu_);  // a ring
  int64_t num_noted_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace quire::engine
