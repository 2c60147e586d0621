#include "engine/output/beam_search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/reproducible_math.h"

namespace quire::engine {

BeamSearch::BeamSearch(const Request& request, std::span<const int32_t> end_ids)
    : request_(request),
      params_(*request.params.sampling.beam),
      end_ids_(end_ids),
      rows_(static_cast<size_t>(params_.width)),
      children_(static_cast<size_t>(params_.width)) {}

void BeamSearch::SetRow(int32_t slot, absl::StatusOr<kernels::SampledRow> row,
                        std::span<const int32_t> generated) {
  QUIRE_CHECK(!ended_ && num_rows_ < std::ssize(beams_)) << "slot " << slot;
  ++num_rows_;
  status_.Update(row.status());
  rows_[slot].best.clear();
  if (row.ok()) rows_[slot].best = std::move(row->logprobs->top);
  rows_[slot].generated = generated;
}

absl::Status BeamSearch::Advance() {
  QUIRE_CHECK(!ended_ && has_all_rows());
  num_rows_ = 0;
  if (!status_.ok()) return status_;
  ListCandidates();
  const int64_t num_generated = std::ssize(rows_[beams_.front().slot].generated) + 1;
  kept_.clear();
  for (int32_t i = 0; i < std::ssize(candidates_); ++i) {
    const Candidate& candidate = candidates_[i];
    const TokenVerdict verdict =
        CheckTokenStops(request_, end_ids_, candidate.token, num_generated);
    if (verdict.finish_reason == FinishReason::kNone) {
      if (std::ssize(kept_) < params_.width) kept_.push_back(candidate);
    } else if (i < params_.width) {
      AddAnswer(candidate, num_generated, verdict);
    }
  }
  if (num_generated >= request_.max_tokens) {
    ended_ = true;
    return absl::OkStatus();
  }
  if (std::ssize(kept_) < params_.width) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampling.beam.width: want at most the ", kept_.size(),
        " continuations that there are after ", num_generated, " tokens, got ", params_.width));
  }
  AssignSlots();
  ended_ =
      std::ssize(answers_) == params_.width &&
      (params_.early_stopping == BeamParams::EarlyStopping::kAlways || !CanImprove(num_generated));
  return absl::OkStatus();
}

void BeamSearch::ListCandidates() {
  candidates_.clear();
  for (int32_t rank = 0; rank < std::ssize(beams_); ++rank) {
    for (const kernels::TokenLogprob& next : rows_[beams_[rank].slot].best) {
      candidates_.push_back({.sum = beams_[rank].sum + static_cast<double>(next.logprob),
                             .rank = rank,
                             .token = next.token_id});
    }
  }
  const size_t num_kept =
      std::min(candidates_.size(), static_cast<size_t>(request_.num_candidates));
  std::ranges::partial_sort(candidates_, candidates_.begin() + static_cast<int64_t>(num_kept), {},
                            [](const Candidate& c) { return std::tuple(-c.sum, c.rank, c.token); });
  candidates_.resize(num_kept);
}

void BeamSearch::AddAnswer(const Candidate& candidate, int64_t num_generated,
                           const TokenVerdict& verdict) {
  const double score = candidate.sum / base::Pow(static_cast<double>(num_generated),
                                                 static_cast<double>(params_.length_penalty));
  const auto place =
      std::ranges::find_if(answers_, [&](const Answer& answer) { return answer.score < score; });
  if (place == answers_.end() && std::ssize(answers_) == params_.width) return;
  const std::span<const int32_t> before = rows_[beams_[candidate.rank].slot].generated;
  Answer answer{.tokens = {before.begin(), before.end()}, .score = score, .verdict = verdict};
  answer.tokens.push_back(candidate.token);
  answers_.insert(place, std::move(answer));
  if (std::ssize(answers_) > params_.width) answers_.pop_back();
}

void BeamSearch::AssignSlots() {
  next_beams_.assign(kept_.size(), {.slot = -1});
  std::ranges::fill(children_, Child{.parent = -1});  // the slot is free
  const auto place = [&](size_t rank, int32_t slot) {
    const Candidate& candidate = kept_[rank];
    children_[slot] = {.parent = beams_[candidate.rank].slot, .token = candidate.token};
    next_beams_[rank] = {.slot = slot, .sum = candidate.sum};
  };
  // Which slots have no child of their own beam is known after the first children have theirs.
  for (size_t rank = 0; rank < kept_.size(); ++rank) {
    const int32_t slot = beams_[kept_[rank].rank].slot;
    if (children_[slot].parent < 0) place(rank, slot);
  }
  int32_t slot = 0;
  for (size_t rank = 0; rank < kept_.size(); ++rank) {
    if (next_beams_[rank].slot >= 0) continue;
    while (children_[slot].parent >= 0) ++slot;
    place(rank, slot);
  }
  std::swap(beams_, next_beams_);
}

bool BeamSearch::CanImprove(int64_t num_generated) const {
  const bool looks_ahead =
      params_.early_stopping == BeamParams::EarlyStopping::kNever && params_.length_penalty > 0.0f;
  const auto length = static_cast<double>(looks_ahead ? request_.max_tokens : num_generated);
  const double best =
      beams_.front().sum / base::Pow(length, static_cast<double>(params_.length_penalty));
  return best > answers_.back().score;
}

}  // namespace quire::engine
