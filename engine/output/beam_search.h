#pragma once

// Beam search: which continuations become the next beams, and which answers have been found.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/output/token_stops.h"
#include "engine/request/request.h"
#include "kernels/ops/sample.h"

namespace quire::engine {

// Computes what transformers' `_beam_search` computes (generation/utils.py of version 5), without
// sampling. A step looks at the best Request::num_candidates continuations of all beams, by the sum
// of their log-probabilities. Of equal sums the better beam of the step before comes first, then
// the lower token id. Those that do not end become the next beams. One that ends becomes an answer
// if it is among the first `width`, and if fewer than `width` answers have a score as high.
//
// A beam lives in a *slot*, 0 .. width - 1. The first child of a beam stays in the beam's slot, so
// that the tokens and blocks there serve it; other children get the slots of beams without one.
// The search starts with one beam in slot 0. Sums are doubles. Not thread-safe.
class BeamSearch {
 public:
  // `end_ids` are the model's end tokens. Both must outlive the search.
  BeamSearch(const Request& request, std::span<const int32_t> end_ids);

  // Takes the result of SampleRow::num_best for the beam in `slot`. `generated` are its tokens so
  // far, which must be valid until Advance.
  void SetRow(int32_t slot, absl::StatusOr<kernels::SampledRow> row,
              std::span<const int32_t> generated);
  // True once every beam has its row.
  bool has_all_rows() const { return num_rows_ == std::ssize(beams_); }
  // Does one step, from the rows of all beams. After an error the search cannot go on.
  absl::Status Advance();

  bool ended() const { return ended_; }
  // The next beams, by slot; not after the end.
  struct Child {
    int32_t parent = 0;  // slot
    int32_t token = 0;
  };
  std::span<const Child> children() const { return children_; }

  struct Answer {
    std::vector<int32_t> tokens;  // the end token included
    double score = 0.0;
    TokenVerdict verdict;  // on the last token
  };
  // Best first; complete when the search has ended.
  std::span<const Answer> answers() const { return answers_; }

 private:
  struct Beam {
    int32_t slot = 0;
    double sum = 0.0;
  };
  struct Row {
    std::vector<kernels::TokenLogprob> best;
    std::span<const int32_t> generated;
  };
  struct Candidate {
    double sum = 0.0;
    int32_t rank = 0;  // of its parent among beams_
    int32_t token = 0;
  };

  void ListCandidates();
  void AddAnswer(const Candidate& candidate, int64_t num_generated, const TokenVerdict& verdict);
  // Gives the next beams, which are in kept_, their slots.
  void AssignSlots();
  bool CanImprove(int64_t num_generated) const;

  const Request& request_;
  const BeamParams params_;
  const std::span<const int32_t> end_ids_;
  std::vector<Beam> beams_ = {{}};  // best first
  std::vector<Row> rows_;           // by slot
  int64_t num_rows_ = 0;
  absl::Status status_;  // of the rows
  std::vector<Child> children_;
  std::vector<Answer> answers_;
  bool ended_ = false;
  // Scratch of Advance, kept for its capacity.
  std::vector<Candidate> candidates_, kept_;
  std::vector<Beam> next_beams_;
};

}  // namespace quire::engine
