#pragma once

// The ids from which a token may still be drawn after each stage.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling/gumbel.h"

namespace quire::engine {

struct Candidate {
  float logit = 0.0f;  // after penalties and biases, before the temperature
  int32_t id = 0;

  // The likelier first; among equals the lower id, so that a cut through ties is always the same.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }
};

// Starts as the whole row, which costs nothing; the first stage that cuts turns it into a list. It
// is never empty: every stage keeps at least one id. NaN and -infinity are never in it. Reused from
// row to row: it allocates only for a larger row than before.
class KeptSet {
 public:
  // `logits` and `maxima` must stay valid until the next Reset. The largest logit must be finite
  // and `temperature` above 0; BlockMaxima computes `maxima`.
  void Reset(std::span<const float> logits, std::span<const float> maxima, float temperature);

  bool is_whole_row() const { return is_whole_row_; }
  std::span<const float> logits() const { return logits_; }
  std::span<const float> maxima() const { return maxima_; }
  float temperature() const { return temperature_; }
  float row_max() const { return row_max_; }  // weights are relative to it

  // Turns the whole row into the list of its logits of at least `lowest`; a second call starts from
  // the row again.
  void ListAtLeast(double lowest);
  // Keeps the `count` first in Candidate's order, as a list.
  void KeepFirst(int64_t count);
  std::vector<Candidate>& list() { return list_; }  // empty while it is the whole row; in no order

  // The share of a candidate, e^((logit - row_max) / temperature), rounded so that sums are exact.
  double WeightOf(const Candidate& candidate) const;
  double SumOfWeights();
  // Keeps the fewest candidates, taken in Candidate's order, whose weights add up to at least
  // `mass`. The set must be a list.
  void KeepMass(double mass);

  // The drawn id: the one with the largest logit / temperature + Gumbel; the lowest id among
  // equals.
  int32_t Draw(const NoiseKey& key);

 private:
  int32_t DrawFromList(const NoiseKey& key) const;

  std::span<const float> logits_;
  std::span<const float> maxima_;
  float temperature_ = 1.0f;
  float row_max_ = 0.0f;
  bool is_whole_row_ = true;
  std::vector<Candidate> list_;
  std::vector<float> exponentials_;      // of the whole row; empty until it was summed
  std::vector<float> sorted_maxima_;     // scratch of KeepFirst
  std::vector<float> scattered_;         // a long list as a row again
  std::vector<float> scattered_maxima_;  // and its block maxima
};

}  // namespace quire::engine
