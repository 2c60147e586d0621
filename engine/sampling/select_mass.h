#pragma once

// The cut used by top_k, top_p and typical_p: the first elements of an order that hold a mass.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace quire::engine {

// Moves to the front of `elements` the fewest, in their `<` order, whose weights reach `mass`, and
// returns how many: an element is among them when those before it weigh less than `mass` together;
// the first always is. They are left unsorted.
//
// key(element) is a finite double that never decreases along the order; elements of equal key may
// come in any order among them. weight(element) >= 0, with sums that are exact (exp.h), so that the
// result is defined to the last bit. Linear time as a rule: elements are counted into intervals of
// the key, and only the interval with the cut is visited again.
template <typename Element, typename KeyFn, typename WeightFn>
int64_t SelectMass(std::vector<Element>& elements, double mass, const KeyFn& key,
                   const WeightFn& weight) {
  constexpr int kIntervals = 256;
  constexpr int64_t kSortBelow = 48;
  // Elements before `low` are in and weigh `before`; those from `high` on are out.
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
    if (!std::isfinite(scale)) break;  // all but equal: sort them
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

}  // namespace quire::engine
