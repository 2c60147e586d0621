#pragma once

// The cut of top_k, top_p and typical_p: selects the first elements of an order until their weights
// reach a given mass.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace quire::kernels::sampling {

// Selects the fewest elements, taken in their `<` order, whose weights add up to at least `mass`.
// An element is selected if the elements before it weigh less than `mass` together. The first
// element is always selected. Moves the selected elements to the front of `elements`, unsorted, and
// returns their number.
//
// key(element) is a finite double that never decreases along the `<` order. Elements of equal key
// may be in any order among themselves. weight(element) is at least 0, and sums of weights are
// exact (exp.h), so that the result is defined to the last bit.
//
// The time is linear as a rule: the weights are added up by intervals of the key, and only the
// elements of the interval with the cut are visited again.
template <typename Element, typename KeyFn, typename WeightFn>
int64_t SelectMass(std::vector<Element>& elements, double mass, const KeyFn& key,
                   const WeightFn& weight) {
  constexpr int kIntervals = 256;
  constexpr int64_t kSortBelow = 48;
  // Elements before `low` are selected, and weigh `before` in all. Those from `high` on are not
  // selected.
  auto low = elements.begin();
  auto high = elements.end();
  double before = 0.0;
  while (high - low > kSortBelow) {
    double smallest = key(*low);
    double largest = smallest;
    for (auto it = low; it != high; ++it) {
      const double k = key(*it);
      smallest = k < smallest ? k : smallest;
      largest = k > largest ? k : largest;
    }
    const double scale = (kIntervals - 1) / (largest - smallest);
    if (!std::isfinite(scale)) break;  // the keys are nearly equal, so the elements are sorted
    const auto interval = [&](const Element& element) {
      return static_cast<int>((key(element) - smallest) * scale);
    };
    std::array<double, kIntervals> weights = {};
    for (auto it = low; it != high; ++it) weights[interval(*it)] += weight(*it);
    int cut = 0;
    while (cut < kIntervals - 1 && before + weights[cut] < mass) before += weights[cut++];
    low = std::partition(low, high, [&](const Element& e) { return interval(e) < cut; });
    high = std::partition(low, high, [&](const Element& e) { return interval(e) == cut; });
  }
  std::sort(low, high);
  auto end = low;
  while (end != high && (end == elements.begin() || before < mass)) before += weight(*end++);
  return end - elements.begin();
}

}  // namespace quire::kernels::sampling
