#pragma once

// PlansByWindow keeps the last two attention plans of each window. One plan serves the step in
// flight, the other serves the next step.

#include <array>
#include <cstdint>
#include <map>

namespace quire::kernels {

template <typename Plan>
class PlansByWindow {
 public:
  // Returns the older plan of `window`. The caller rebuilds this plan. All plans keep their
  // addresses.
  Plan& Next(int32_t window) {
    Pair& pair = pairs_[window];
    pair.next = 1 - pair.next;
    return pair.plans[pair.next];
  }

  // Returns a plan for which `is_it` is true, or null when there is none.
  template <typename Predicate>
  const Plan* Find(Predicate is_it) const {
    for (const auto& [window, pair] : pairs_) {
      for (const Plan& plan : pair.plans) {
        if (is_it(plan)) return &plan;
      }
    }
    return nullptr;
  }

 private:
  struct Pair {
    std::array<Plan, 2> plans;
    size_t next = 0;
  };
  std::map<int32_t, Pair> pairs_;  // a model has few windows
};

}  // namespace quire::kernels
