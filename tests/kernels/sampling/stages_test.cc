// Compares each sampling stage with its definition in float64, on rows of every kind.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <rapidcheck.h>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/sampling/kept_set.h"
#include "kernels/sampling/min_p.h"
#include "kernels/sampling/row_passes.h"
#include "kernels/sampling/top_k_top_p.h"
#include "kernels/sampling/typical_p.h"
#include "tests/kernels/sampling/random_logits.h"

namespace quire::kernels::sampling {
namespace {

using ::testing::ElementsAre;

// A value that is nearer than this to a cut may fall on either side of the cut, because the weights
// of the stages are float32 exponentials.
constexpr double kTooNear = 1e-6;

// Computes the stages the slow way, by their definition. `ambiguous` is true when rounding decides
// the result.
class NaiveKeptSet {
 public:
  NaiveKeptSet(const std::vector<float>& logits, float temperature)
      : logits_(logits), temperature_(temperature) {
    for (int32_t id = 0; id < std::ssize(logits); ++id) {
      if (logits[id] > -std::numeric_limits<float>::infinity()) ids_.push_back(id);
    }
    SortBy([this](int32_t id) { return -static_cast<double>(logits_[id]); });
  }

  void TopK(int32_t k) {
    if (k > 0 && k < std::ssize(ids_)) ids_.resize(k);
  }

  void TopP(double p) {
    if (p < 1.0) CutAtMass(p);
  }

  void MinP(double p) {
    if (p <= 0.0) return;
    const double max = logits_[ids_[0]];
    std::erase_if(ids_, [&](int32_t id) {
      const double ratio = std::exp((logits_[id] - max) / temperature_);
      ambiguous_ = ambiguous_ ||
                   (id != ids_[0] && logits_[id] != max && std::abs(ratio / p - 1.0) < kTooNear);
      return ratio < p && logits_[id] != max;
    });
  }

  void TypicalP(double p) {
    if (p >= 1.0) return;
    const double m = max();
    const double total = sum();
    const auto probability_of = [&](int32_t id) {
      return std::exp((static_cast<double>(logits_[id]) - m) / temperature_) / total;
    };
    double entropy = 0.0;
    for (const int32_t id : ids_) {
      const double probability = probability_of(id);
      if (probability > 0.0) entropy -= probability * std::log(probability);
    }
    const auto distance = [&](int32_t id) {
      const double probability = probability_of(id);
      return probability > 0.0 ? std::abs(-std::log(probability) - entropy) : 1e9;
    };
    SortBy(distance);
    std::vector<double> distances;
    for (const int32_t id : ids_) distances.push_back(distance(id));
    CutAtMass(p);
    // The cut is ambiguous if the ids on its two sides are almost equally near to the entropy.
    const auto cut = ids_.size();
    if (cut < distances.size() && distances[cut] - distances[cut - 1] < kTooNear) ambiguous_ = true;
    SortBy([this](int32_t id) { return -static_cast<double>(logits_[id]); });
  }

  bool ambiguous() const { return ambiguous_; }
  std::set<int32_t> ids() const { return {ids_.begin(), ids_.end()}; }

 private:
  double max() const {
    double max = -std::numeric_limits<double>::infinity();
    for (const int32_t id : ids_) max = std::max<double>(max, logits_[id]);
    return max;
  }
  double sum() const {
    const double m = max();
    double sum = 0.0;
    for (const int32_t id : ids_) sum += std::exp((logits_[id] - m) / temperature_);
    return sum;
  }
  template <typename Key>
  void SortBy(const Key& key) {
    std::sort(ids_.begin(), ids_.end());
    std::vector<std::pair<double, size_t>> keyed;
    for (size_t i = 0; i < ids_.size(); ++i) keyed.emplace_back(key(ids_[i]), i);
    std::stable_sort(keyed.begin(), keyed.end());
    std::vector<int32_t> sorted;
    for (const auto& [unused, i] : keyed) sorted.push_back(ids_[i]);
    ids_ = sorted;
  }
  // Keeps the shortest prefix of the ids whose mass reaches `p`.
  void CutAtMass(double p) {
    const double m = max();
    const double total = sum();
    double before = 0.0;
    size_t count = 0;
    while (count < ids_.size() && (count == 0 || before < p)) {
      before += std::exp((logits_[ids_[count]] - m) / temperature_) / total;
      ++count;
      ambiguous_ = ambiguous_ || (count < ids_.size() && std::abs(before - p) < kTooNear);
    }
    ids_.resize(count);
  }

  const std::vector<float>& logits_;
  const double temperature_;
  std::vector<int32_t> ids_;
  bool ambiguous_ = false;
};

struct Row {
  Row(const std::vector<float>& values, float temperature)
      : logits(values), maxima(NumRowBlocks(std::ssize(values))) {
    BlockMaxima(logits, maxima);
    kept.Reset(logits, maxima, temperature);
  }
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

  std::set<int32_t> ids() {
    if (kept.is_whole_row()) kept.ListAtLeast(-std::numeric_limits<double>::infinity());
    std::set<int32_t> ids;
    for (const Candidate& candidate : kept.list()) ids.insert(candidate.id);
    return ids;
  }

  std::vector<float> logits;
  std::vector<float> maxima;
  KeptSet kept;
};

// CheckStages applies these stages to a row twice, once by the sampler's functions and once by
// NaiveKeptSet. CheckStages discards a row for which rounding decides the answer.
struct Stages {
  int32_t top_k = 0;
  float typical_p = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
};

void CheckStages(const std::vector<float>& logits, float temperature, const Stages& stages) {
  NaiveKeptSet naive(logits, temperature);
  naive.TopK(stages.top_k);
  naive.TypicalP(stages.typical_p);
  naive.TopP(stages.top_p);
  naive.MinP(stages.min_p);
  RC_PRE(!naive.ambiguous());

  Row row(logits, temperature);
  TypicalP typical_p;
  ApplyTopK(stages.top_k, row.kept);
  typical_p.Apply(stages.typical_p, row.kept);
  ApplyTopP(stages.top_p, row.kept);
  ApplyMinP(stages.min_p, row.kept);
  RC_ASSERT(row.ids() == naive.ids());
}

rc::Gen<float> AnyTemperature() { return rc::gen::element(0.1f, 0.7f, 1.0f, 1.3f, 5.0f); }
rc::Gen<float> AnyShare() { return rc::gen::element(1e-6f, 0.1f, 0.3f, 0.5f, 0.77f, 0.9f, 0.99f); }

TEST(StagesTest, TopKIsItsDefinition) {
  EXPECT_TRUE(rc::check([] {
    CheckStages(*AnyLogits(2000), *AnyTemperature(), {.top_k = *rc::gen::inRange(0, 2100)});
  }));
}

TEST(StagesTest, TopPIsItsDefinition) {
  EXPECT_TRUE(
      rc::check([] { CheckStages(*AnyLogits(2000), *AnyTemperature(), {.top_p = *AnyShare()}); }));
}

TEST(StagesTest, MinPIsItsDefinition) {
  EXPECT_TRUE(
      rc::check([] { CheckStages(*AnyLogits(2000), *AnyTemperature(), {.min_p = *AnyShare()}); }));
}

TEST(StagesTest, TypicalPIsItsDefinition) {
  EXPECT_TRUE(rc::check(
      [] { CheckStages(*AnyLogits(2000), *AnyTemperature(), {.typical_p = *AnyShare()}); }));
}

TEST(StagesTest, EachSeesWhatTheOnesBeforeItLeft) {
  EXPECT_TRUE(rc::check([] {
    CheckStages(*AnyLogits(500), *AnyTemperature(),
                {.top_k = *rc::gen::inRange(0, 600),
                 .typical_p = *rc::gen::element(0.5f, 0.9f, 1.0f),
                 .top_p = *rc::gen::element(0.5f, 0.9f, 1.0f),
                 .min_p = *rc::gen::element(0.0f, 0.01f, 0.3f)});
  }));
}

TEST(StagesTest, ACutThroughTiesKeepsTheLowerIds) {
  const std::vector<float> flat(1000, 2.0f);
  {
    Row row(flat, 1.0f);
    ApplyTopK(3, row.kept);
    EXPECT_THAT(row.ids(), ElementsAre(0, 1, 2));
  }
  {
    Row row(flat, 1.0f);
    ApplyTopP(0.004f, row.kept);  // 0.004 in float32 is above 4 / 1000: a fifth id is needed
    EXPECT_THAT(row.ids(), ElementsAre(0, 1, 2, 3, 4));
  }
  {
    Row row(std::vector<float>(4, -1.0f), 1.0f);
    ApplyTopP(0.5f, row.kept);  // two ids have exactly half of the mass
    EXPECT_THAT(row.ids(), ElementsAre(0, 1));
  }
  {
    Row row(flat, 1.0f);
    TypicalP().Apply(0.002f, row.kept);
    EXPECT_THAT(row.ids(), ElementsAre(0, 1, 2));
  }
  {
    Row row({1.0f, 3.0f, 2.0f, 3.0f}, 1.0f);
    ApplyMinP(1.0f, row.kept);  // ties with the likeliest stay
    EXPECT_THAT(row.ids(), ElementsAre(1, 3));
  }
}

TEST(StagesTest, KeepsAtLeastOneAtTheEdgesOfTemperature) {
  for (const float temperature : {1e-45f, 1e-6f, 100.0f}) {
    Row row({-3e38f, 1.0f, 0.5f, -std::numeric_limits<float>::infinity(), 3e38f}, temperature);
    TypicalP().Apply(1e-6f, row.kept);
    ApplyTopP(1e-6f, row.kept);
    ApplyMinP(1.0f, row.kept);
    EXPECT_THAT(row.ids(), ElementsAre(4)) << temperature;
    EXPECT_EQ(row.kept.Draw({}), 4);
  }
}

TEST(StagesTest, ALongListDrawsAsAShortOne) {
  // Draw reads the whole row if more than a certain share of the ids is kept. Otherwise it reads
  // the list of kept ids.
  EXPECT_TRUE(rc::check([](uint64_t seed) {
    const std::vector<float> logits = *AnyLogits(1000);
    const int32_t top_k = *rc::gen::inRange(1, 1000);
    Row row(logits, 1.0f);
    ApplyTopK(top_k, row.kept);
    const std::set<int32_t> ids = row.ids();
    const float max = logits[std::min_element(row.kept.list().begin(), row.kept.list().end())->id];
    int32_t naive = -1;
    double best = -std::numeric_limits<double>::infinity();
    for (const int32_t id : ids) {
      const double score = NoisyScore(logits[id], max, 1.0f, NoiseBits({.seed = seed}, id));
      if (score > best) {
        best = score;
        naive = id;
      }
    }
    RC_ASSERT(row.kept.Draw({.seed = seed}) == naive);
  }));
}

}  // namespace
}  // namespace quire::kernels::sampling
