#pragma once

// The set of ids from which a token may still be drawn after a stage of the sampler.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling/gumbel.h"

namespace quire::kernels::sampling {

struct Candidate {
  float logit = 0.0f;  // after penalties and biases, before the temperature
  int32_t id = 0;

  // The likelier candidate comes first. Among equally likely candidates, the lower id comes first,
  // so that a cut through ties is always the same.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }
};

// The set starts as the whole row, which costs nothing. The first stage that cuts turns the set
// into a list. The set is never empty, since every stage keeps at least one id. Ids whose logit is
// NaN or -infinity are never drawn. Reset starts the next row and keeps the memory of the buffers.
class KeptSet {
 public:
  // Starts a new row. `logits` and `maxima` must stay valid until the next Reset. BlockMaxima
  // computes `maxima`. The largest logit must be finite and `temperature` above 0.
  void Reset(std::span<const float> logits, std::span<const float> maxima, float temperature);

  bool is_whole_row() const { return is_whole_row_; }
  std::span<const float> logits() const { return logits_; }
  std::span<const float> maxima() const { return maxima_; }
  float temperature() const { return temperature_; }
  float row_max() const { return row_max_; }  // the largest logit, to which weights are relative

  // Turns the set into a list of the row's ids whose logit is at least `lowest`. A second call
  // starts from the whole row again.
  void ListAtLeast(double lowest);
  // Keeps the first `count` candidates, in the order of Candidate, as a list.
  void KeepFirst(int64_t count);
  // Returns the list, unsorted. It is empty while the set is the whole row.
  std::vector<Candidate>& list() { return list_; }

  // Returns the weight of a candidate: e^((logit - row_max) / temperature), rounded so that sums
  // are exact.
  double WeightOf(const Candidate& candidate) const;
  double SumOfWeights();
  // Keeps the fewest candidates, taken in the order of Candidate, whose weights add up to at least
  // `mass`. The set must be a list.
  void KeepMass(double mass);

  // Draws an id: returns the id with the largest logit / temperature + Gumbel. Among equal values
  // the lowest id wins.
  int32_t Draw(const NoiseKey& key);

 private:
  int32_t DrawFromList(const NoiseKey& key) const;

  std::span<const float> logits_;
  std::span<const float> maxima_;
  float temperature_ = 1.0f;
  float row_max_ = 0.0f;
  bool is_whole_row_ = true;
  std::vector<Candidate> list_;
  std::vector<float> exponentials_;  // unrounded weights of the whole row; empty until SumOfWeights
  std::vector<float> sorted_maxima_;     // scratch of KeepFirst
  std::vector<float> scattered_;         // a long list, written as a row again
  std::vector<float> scattered_maxima_;  // the block maxima of scattered_
};

}  // namespace quire::kernels::sampling
