#include "kernels/sampling/min_p.h"

#include <algorithm>
#include <vector>

#include "base/reproducible_math.h"

namespace quire::kernels::sampling {

void ApplyMinP(float min_p, KeptSet& kept) {
  if (min_p <= 0.0f) return;
  const double depth = -base::Log(static_cast<double>(min_p)) * kept.temperature();
  if (kept.is_whole_row()) {
    kept.ListAtLeast(kept.row_max() - depth);
    return;
  }
  std::vector<Candidate>& list = kept.list();
  // In the order of `<`, the likeliest candidate is the smallest.
  const float max = std::min_element(list.begin(), list.end())->logit;
  std::erase_if(list, [lowest = max - depth](const Candidate& c) { return c.logit < lowest; });
}

}  // namespace quire::kernels::sampling
