#include "kernels/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/reproducible_math.h"
#include "kernels/sampling/kept_set.h"
#include "kernels/sampling/row_passes.h"
#include "kernels/sampling/top_k_top_p.h"

namespace quire::kernels::sampling {

float Logprob(float logit, float max, double log_sum) {
  if (std::isnan(logit)) return kMinusInfinity;
  const double difference = static_cast<double>(logit) - static_cast<double>(max);
  return static_cast<float>((difference - log_sum) + 0.0);  // -0, if `max` is the other zero, is 0
}

PositionLogprobs ComputeLogprobs(std::span<const float> logits, int32_t chosen_id,
                                 int32_t num_top) {
  thread_local std::vector<float> maxima;
  thread_local KeptSet best;
  maxima.resize(NumRowBlocks(std::ssize(logits)));
  BlockMaxima(logits, maxima);
  PositionLogprobs result = {.chosen = {.token_id = chosen_id, .logprob = kMinusInfinity}};
  if (!std::isfinite(*std::max_element(maxima.begin(), maxima.end()))) return result;
  best.Reset(logits, maxima, /*temperature=*/1.0f);
  const double log_sum = base::Log(best.SumOfWeights());
  const auto logprob = [&](float logit) { return Logprob(logit, best.row_max(), log_sum); };

  if (chosen_id >= 0 && chosen_id < std::ssize(logits)) {
    result.chosen.logprob = logprob(logits[chosen_id]);
  }
  if (num_top == 0) return result;
  best.KeepFirst(num_top);
  std::sort(best.list().begin(), best.list().end());
  result.top.reserve(best.list().size());
  for (const Candidate& candidate : best.list()) {
    result.top.push_back({.token_id = candidate.id, .logprob = logprob(candidate.logit)});
  }
  return result;
}

int32_t RankOf(std::span<const float> logits, int32_t id) {
  const bool has_logit = id >= 0 && id < std::ssize(logits) && logits[id] > kMinusInfinity;
  const float logit = has_logit ? logits[id] : kMinusInfinity;
  // Of the ids below `id`, equals come before it, and NaN equals -infinity.
  const auto lower = logits.first(std::clamp<size_t>(id, 0, logits.size()));
  const auto before = has_logit ? std::ranges::count_if(lower, [&](float l) { return l >= logit; })
                                : std::ssize(lower);
  const auto behind =
      std::ranges::count_if(logits.subspan(lower.size()), [&](float l) { return l > logit; });
  return static_cast<int32_t>(1 + before + behind);
}

std::vector<TokenLogprob> ComputeBest(std::span<const float> logits,
                                      std::span<const float> eligible, int32_t num_best) {
  thread_local std::vector<float> maxima;
  thread_local KeptSet row;
  maxima.resize(NumRowBlocks(std::ssize(logits)));
  BlockMaxima(logits, maxima);
  row.Reset(logits, maxima, /*temperature=*/1.0f);
  const double log_sum = base::Log(row.SumOfWeights());
  const float max = row.row_max();
  maxima.resize(NumRowBlocks(std::ssize(eligible)));
  BlockMaxima(eligible, maxima);
  row.Reset(eligible, maxima, /*temperature=*/1.0f);
  row.KeepFirst(num_best);
  std::sort(row.list().begin(), row.list().end());
  std::vector<TokenLogprob> best;
  best.reserve(row.list().size());
  for (const Candidate& candidate : row.list()) {
    if (candidate.logit == kMinusInfinity) break;
    best.push_back({.token_id = candidate.id, .logprob = Logprob(candidate.logit, max, log_sum)});
  }
  return best;
}

}  // namespace quire::kernels::sampling
