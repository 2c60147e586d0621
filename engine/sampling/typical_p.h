#pragma once

// Locally typical sampling (arXiv:2202.00666).

#include <vector>

#include "engine/sampling/kept_set.h"

namespace quire::engine {

// Keeps the ids whose surprise -log p is nearest to the distribution's entropy: the fewest, nearest
// first, whose probabilities among the ids kept so far reach typical_p. As HF transformers'
// TypicalLogitsWarper, except that among ids equally near at the cut the likelier, then the lower
// stay (there: all). The likeliest id may be cut. 1: no change. Costs one pass, with about the work
// of a logarithm per id, over all kept ids: use it after top_k.
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

}  // namespace quire::engine
