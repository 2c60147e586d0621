#include "kernels/sampling/kept_set.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "kernels/sampling/exp.h"
#include "kernels/sampling/row_passes.h"
#include "kernels/sampling/select_mass.h"

namespace quire::kernels::sampling {
namespace {

// A list is long if it has at least 1 / kListShareForRow of the ids of the row. Noise for the whole
// row is then cheaper than noise for each id of the list. Measured with 49,152 ids, the whole row
// takes 0.07 ms, and each id of a list takes 25 ns.
constexpr int64_t kListShareForRow = 16;

double Rank(const Candidate& candidate) { return -static_cast<double>(candidate.logit); }

}  // namespace

void KeptSet::Reset(std::span<const float> logits, std::span<const float> maxima,
                    float temperature) {
  logits_ = logits;
  maxima_ = maxima;
  temperature_ = temperature;
  row_max_ = *std::max_element(maxima.begin(), maxima.end());
  is_whole_row_ = true;
  list_.clear();
  exponentials_.clear();
}

void KeptSet::ListAtLeast(double lowest) {
  is_whole_row_ = false;
  list_.clear();
  const auto size = static_cast<int64_t>(logits_.size());
  for (int64_t block = 0; block < std::ssize(maxima_); ++block) {
    if (!(maxima_[block] >= lowest)) continue;
    const int64_t first = block * kRowBlock;
    const int64_t end = std::min(first + kRowBlock, size);
    for (int64_t id = first; id < end; ++id) {
      const float logit = logits_[id];
      if (logit >= lowest && logit > kMinusInfinity) {
        list_.push_back({.logit = logit, .id = static_cast<int32_t>(id)});
      }
    }
  }
}

void KeptSet::KeepFirst(int64_t count) {
  if (is_whole_row_) {
    // `count` blocks have a maximum of at least `lowest`, so at least `count` logits reach
    // `lowest`.
    double lowest = -std::numeric_limits<double>::infinity();
    if (count > 0 && count <= std::ssize(maxima_)) {
      sorted_maxima_.assign(maxima_.begin(), maxima_.end());
      const auto nth = sorted_maxima_.begin() + (count - 1);
      std::nth_element(sorted_maxima_.begin(), nth, sorted_maxima_.end(), std::greater<>());
      lowest = *nth;
    }
    ListAtLeast(lowest);
  }
  if (count >= std::ssize(list_)) return;
  list_.resize(
      SelectMass(list_, static_cast<double>(count), Rank, [](const Candidate&) { return 1.0; }));
}

void KeptSet::KeepMass(double mass) {
  list_.resize(SelectMass(list_, mass, Rank, [this](const Candidate& c) { return WeightOf(c); }));
}

double KeptSet::WeightOf(const Candidate& candidate) const {
  if (!exponentials_.empty()) return RoundWeight(exponentials_[candidate.id]);
  return Weight(candidate.logit, row_max_, temperature_);
}

double KeptSet::SumOfWeights() {
  if (is_whole_row_) {
    exponentials_.resize(logits_.size());
    return sampling::SumOfWeights(logits_, row_max_, temperature_, exponentials_);
  }
  double sum = 0.0;
  for (const Candidate& candidate : list_) sum += WeightOf(candidate);
  return sum;
}

int32_t KeptSet::Draw(const NoiseKey& key) {
  if (is_whole_row_) return ArgMaxWithNoise(logits_, maxima_, temperature_, key);
  if (std::ssize(list_) < std::ssize(logits_) / kListShareForRow) return DrawFromList(key);
  scattered_.assign(logits_.size(), kMinusInfinity);
  for (const Candidate& candidate : list_) scattered_[candidate.id] = candidate.logit;
  scattered_maxima_.resize(maxima_.size());
  BlockMaxima(scattered_, scattered_maxima_);
  return ArgMaxWithNoise(scattered_, scattered_maxima_, temperature_, key);
}

int32_t KeptSet::DrawFromList(const NoiseKey& key) const {
  // In the order of `<`, the likeliest candidate is the smallest.
  const float max = std::min_element(list_.begin(), list_.end())->logit;
  int32_t best_id = -1;
  double best_score = -std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : list_) {
    const double base = (static_cast<double>(candidate.logit) - max) / temperature_;
    if (best_score - base > kMaxGumbel) continue;
    const uint32_t bits = NoiseBits(key, candidate.id);
    if (bits < BitsThatMayReach(best_score - base)) continue;
    const double score = NoisyScore(candidate.logit, max, temperature_, bits);
    if (score > best_score || (score == best_score && candidate.id < best_id)) {
      best_id = candidate.id;
      best_score = score;
    }
  }
  return best_id;
}

}  // namespace quire::kernels::sampling
