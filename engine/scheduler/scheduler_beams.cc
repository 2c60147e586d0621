// The beams of one request. They are one State, so they are planned, preempted and ended together.
//
// Until its prompt is computed, the State is a sequence like any other, with a place for each beam.
// Then it is forked, and each step gives all beams the same number of tokens. When it is preempted,
// the tokens of the beams stay. It comes back by computing what they have in common, as one
// sequence, is forked again, and computes the rest of each beam.

#include <algorithm>

#include "base/check.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/waiting.h"

namespace quire::engine {
namespace {

// The most tokens that beams compute again in one step after a preemption, if the step has decodes
// of other sequences that must not wait for long.
constexpr int32_t kTokensToCatchUp = 64;

}  // namespace

void Scheduler::PlanBeams(State& state, int32_t most_tokens, Budget& budget, StepPlan& plan) {
  const auto width = static_cast<int32_t>(state.beams.size());
  const int64_t begin = state.num_planned;
  const int64_t left = state.num_tokens() - begin;
  if (left == 0 || most_tokens < width) return;
  const auto chunk = static_cast<int32_t>(
      std::clamp<int64_t>(std::min(most_tokens, kTokensToCatchUp) / width, 1, left));
  if (WaitsForQuota(state, begin + chunk)) return;
  if (!MakeRoomForBeams(state, begin + chunk)) {
    NoteLack(state);
    return;
  }
  const bool draws = chunk == left;
  for (const std::shared_ptr<Sequence>& beam : state.beams) {
    blocks_.PrepareWrite(beam->id, begin + chunk);
    plan.entries.push_back({.sequence = beam.get(),
                            .first_index = begin,
                            .first_position = begin,
                            .num_tokens = chunk,
                            .num_logit_rows = draws ? 1 : 0,
                            .num_samples = draws ? 1 : 0});
    in_flight_.back().items.push_back({.state = &state, .num_holds = state.num_holds});
  }
  state.in_flight += width;
  if (draws) {
    state.unsampled += width;
    num_sampled_ += width;
  }
  state.num_planned = begin + chunk;
  state.last_step = plan.step;
  const int32_t num_tokens = width * chunk;
  const int64_t again = width * std::clamp(state.num_known - begin, int64_t{0}, int64_t{chunk});
  state.num_known = std::max(state.num_known, state.num_planned);
  state.sequence->num_recomputed += again;
  stats_.recomputed_tokens += again;
  Charge(state.group->tenant, num_tokens * TenantShares::kDecodeCost);
  plan.num_tokens += num_tokens;
  budget.tokens -= num_tokens;
}

bool Scheduler::MakeRoomForBeams(State& state, int64_t end) {
  while (true) {
    const BlockManager::Growth growth = blocks_.GrowthTogether(state.beam_ids, end);
    if (blocks_.TryGrowTogether(state.beam_ids, end)) {
      state.sequence->num_copies += growth.num_copies;
      stats_.beam_copies += growth.num_copies;
      return true;
    }
    if (blocks_.CouldGrowTogetherLater(state.beam_ids, end)) return false;
    State* victim = PickVictim(state);
    if (victim == nullptr) return false;
    Preempt(*victim);
  }
}

void Scheduler::TakeBeams(State& state, std::span<const SampledToken> tokens, bool lost,
                          std::vector<FinishedSequence>& finished) {
  const auto width = static_cast<size_t>(state.request().params.sampling.beam->width);
  state.beam_tokens.insert(state.beam_tokens.end(), tokens.begin(), tokens.end());
  if (state.beam_tokens.size() < width) return;  // the other beams' entries follow
  const FinishReason reason = state.beam_tokens.front().finish_reason;
  if (reason != FinishReason::kNone) {
    const bool failed = reason == FinishReason::kAbort;
    finished.push_back(End(state, reason, failed ? EndCause::kFailed : EndCause::kFinished));
    return;
  }
  stats_.generated_tokens += static_cast<int64_t>(width);
  const bool is_first = state.beams.empty();
  if (is_first) MakeBeams(state);
  state.beam_parents.clear();
  for (size_t k = 0; k < width; ++k) {
    const int32_t parent = state.beam_tokens[k].parent;
    state.beam_parents.push_back(parent);
    if (parent == static_cast<int32_t>(k)) continue;
    const std::vector<int32_t>& from = state.beams[static_cast<size_t>(parent)]->tokens;
    state.beams[k]->tokens.assign(from.begin(), from.end());
  }
  for (size_t k = 0; k < width; ++k) state.beams[k]->tokens.push_back(state.beam_tokens[k].id);
  state.beam_tokens.clear();
  if (!is_first) {
    blocks_.Reorder(state.beam_ids, state.beam_parents);
  } else if (lost) {
    state.num_joint = state.sequence->prompt_len();
  } else {
    ForkBeams(state);
  }
}

void Scheduler::MakeBeams(State& state) {
  const auto width = static_cast<SequenceId>(state.request().params.sampling.beam->width);
  const std::shared_ptr<Sequence>& first = state.sequence;
  for (SequenceId k = 0; k < width; ++k) {
    std::shared_ptr<Sequence> beam = first;
    if (k > 0) {
      beam = std::allocate_shared<Sequence>(records_);
      beam->id = first->id + k;
      beam->sample_index = static_cast<int32_t>(k);
      beam->request = first->request;
      beam->first_scheduled = first->first_scheduled;
      beam->tokens.reserve(first->tokens.capacity());
    }
    state.beam_ids.push_back(beam->id);
    state.beams.push_back(std::move(beam));
  }
}

// `state` runs, and its first beam holds the tokens that are computed.
void Scheduler::ForkBeams(State& state) {
  blocks_.ForkTogether(state.beam_ids);
  for (const std::shared_ptr<Sequence>& beam : state.beams) {
    beam->num_computed = state.sequence->num_computed;
  }
  state.forked = true;
}

void Scheduler::ReleaseBeams(State& state, const CacheUseEnd& end) {
  for (size_t k = state.beams.size(); k-- > 0;) {
    blocks_.Release(state.beam_ids[k], end);
    state.beams[k]->num_computed = 0;
  }
}

// Returns the number of leading tokens that all beams have in common, fewer than each of them has.
int64_t Scheduler::NumJointTokens(const State& state) {
  const std::vector<int32_t>& first = state.sequence->tokens;
  auto num_joint = std::ssize(first) - 1;
  for (const std::shared_ptr<Sequence>& beam : state.beams) {
    const auto end = first.begin() + num_joint;
    num_joint = std::mismatch(first.begin(), end, beam->tokens.begin()).first - first.begin();
  }
  return num_joint;
}

int64_t Scheduler::BlocksToRejoin(const State& state) const {
  if (state.beams.empty() || state.forked) return 0;
  const int64_t shared = state.num_joint / blocks_.block_size();
  const int64_t each = blocks_.NumBlocksFor(std::ssize(state.sequence->tokens)) - shared;
  const int64_t has = blocks_.NumBlocksFor(state.num_joint) - shared;
  return std::ssize(state.beams) * each - has;
}

}  // namespace quire::engine
