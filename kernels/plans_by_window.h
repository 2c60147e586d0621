#pragma once

// The plans that a backend keeps: the last two of each window, for the step in flight and the next.

#include <array>
#include <cstdint>
#include <map>

namespace quire::kernels {

template <typename Plan>
class PlansByWindow {
 public:
  // The older plan of this window, to be rebuilt. Other plans keep their addresses.
  Plan& Next(int32_t window) {
    Pair& pair = pairs_[window];
    pair.next = 1 - pair.next;
    return pair.plans[pair.next];
  }

  // A plan for which `is_it` is true; null when there is none.
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
