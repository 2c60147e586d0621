#include "kernels/sampling/top_k_top_p.h"

#include <vector>

namespace quire::kernels::sampling {

void ApplyTopK(int32_t top_k, KeptSet& kept) {
  if (top_k <= 0) return;
  if (kept.is_whole_row() && top_k >= std::ssize(kept.logits())) return;
  kept.KeepFirst(top_k);
}

void ApplyTopP(float top_p, KeptSet& kept) {
  if (top_p >= 1.0f) return;
  const double mass = static_cast<double>(top_p) * kept.SumOfWeights();
  if (kept.is_whole_row()) {
    // Usually the weights of a few ids add up to `mass`, so only the ids with weights of at least
    // e^-5 are listed at first. If their sum is below `mass`, all ids with weights of at least
    // e^-25 are listed. Smaller weights are rounded to 0.
    const auto list_down_to = [&kept](double depth) {
      kept.ListAtLeast(kept.row_max() - depth * kept.temperature());
    };
    list_down_to(5.0);
    if (kept.SumOfWeights() < mass) list_down_to(25.0);
  }
  kept.KeepMass(mass);
}

}  // namespace quire::kernels::sampling
