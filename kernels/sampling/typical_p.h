#pragma once

// Locally typical sampling (arXiv:2202.00666).

#include <vector>

#include "kernels/sampling/kept_set.h"

namespace quire::kernels::sampling {

// Keeps the ids whose surprise, -log p, is nearest to the entropy of the distribution: the fewest
// ids, the nearest first, whose probabilities add up to at least typical_p. The ids kept so far
// have probabilities that sum to 1. Among ids equally near at the cut, the likelier and then the
// lower ones stay. HF transformers' TypicalLogitsWarper keeps all of these, and is the same
// otherwise. The likeliest id may be cut. Does nothing if typical_p is 1.
//
// Costs one pass over all kept ids, with about the work of a logarithm for each id, so it is best
// used after top_k.
class TypicalP {
 public:
  void Apply(float typical_p, KeptSet& kept);

 private:
  struct Entry {
    double distance = 0.0;  // of the surprise from the entropy
    Candidate candidate;
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.distance != b.distance ? a.distance < b.distance : a.candidate < b.candidate;
    }
  };
  std::vector<Entry> entries_;  // scratch
};

}  // namespace quire::kernels::sampling
