#include "kernels/sampling/typical_p.h"

#include <cmath>
#include <limits>

#include "kernels/sampling/exp.h"
#include "kernels/sampling/row_passes.h"
#include "kernels/sampling/select_mass.h"

namespace quire::kernels::sampling {

void TypicalP::Apply(float typical_p, KeptSet& kept) {
  if (typical_p >= 1.0f) return;
  if (kept.is_whole_row()) {
    kept.SumOfWeights();  // one fast pass for all weights
    kept.ListAtLeast(-std::numeric_limits<double>::infinity());
  }
  std::vector<Candidate>& list = kept.list();

  // Let d, the depth, be (logit - max) / temperature, and w = e^d. The surprise is log(sum w) - d.
  // The entropy, which is the mean surprise, is log(sum w) - sum(w d) / sum w. So the distance
  // between surprise and entropy is |sum(w d) / sum w - d|.
  const auto depth = [&kept](const Candidate& candidate) {
    return Depth(candidate.logit, kept.row_max(), kept.temperature());
  };
  double sum = 0.0;
  double weighted_depth = 0.0;
  for (const Candidate& candidate : list) {
    const double weight = kept.WeightOf(candidate);
    if (weight == 0.0) continue;  // the id adds nothing
    sum += weight;
    weighted_depth += RoundWeightedDepth(weight * depth(candidate));  // exact in any order
  }
  const double mean_depth = weighted_depth / sum;

  entries_.clear();
  entries_.reserve(list.size());
  for (const Candidate& candidate : list) {
    entries_.push_back(
        {.distance = std::abs(mean_depth - depth(candidate)), .candidate = candidate});
  }
  const int64_t count = SelectMass(
      entries_, static_cast<double>(typical_p) * sum,
      [](const Entry& entry) { return entry.distance; },
      [&kept](const Entry& entry) { return kept.WeightOf(entry.candidate); });
  list.clear();
  for (int64_t i = 0; i < count; ++i) list.push_back(entries_[i].candidate);
}

}  // namespace quire::kernels::sampling
