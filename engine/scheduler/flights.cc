#include "engine/scheduler/flights.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::engine {
namespace {

// Returns the tokens of a sequence that the cache may hold. After the first shift of a cache window
// nothing more is shared.
std::span<const int32_t> Shareable(std::span<const int32_t> tokens, const CacheWindow& window) {
  return window.on() ? tokens.first(std::min<size_t>(tokens.size(), window.capacity())) : tokens;
}

bool SameTokens(std::span<const int32_t> a, std::span<const int32_t> b, int64_t begin,
                int64_t end) {
  return std::equal(a.begin() + begin, a.begin() + end, b.begin() + begin);
}

}  // namespace

void Scheduler::Flights::Add(State& state) {
  const PinId pin = state.request().pins;
  if (pin != kNoPin && least_tokens_ > 0) loads_.emplace(pin, &state);
}

void Scheduler::Flights::Start(State& state) {
  const CacheParams& cache = state.request().params.cache;
  const bool shares =
      !cache.bypass_read && !cache.bypass_write && state.first_row() != 0 && state.beams.empty();
  const std::span<const int32_t> tokens = Shareable(state.sequence->tokens, state.window());
  state.lead_end = std::ssize(tokens);
  const int64_t left = state.lead_end - state.sequence->num_computed;
  if (least_tokens_ == 0 || !shares || left < least_tokens_) return;
  state.leads = true;
  leaders_.push_back(&state);
  ++num_leaders_;
}

int64_t Scheduler::Flights::Overlap(const State& leader, std::span<const int32_t> tokens) const {
  const std::span<const int32_t> known = std::span(leader.sequence->tokens).first(leader.lead_end);
  const int64_t begin = leader.sequence->num_computed;
  // The last token is never taken from the cache.
  const int64_t most = std::min<int64_t>(std::ssize(known), std::ssize(tokens) - 1);
  const int64_t near = begin + least_tokens_;
  if (near > most || !SameTokens(known, tokens, begin, near)) return 0;
  if (!SameTokens(known, tokens, 0, begin)) return 0;
  const auto end = std::mismatch(known.begin() + near, known.begin() + most, tokens.begin() + near);
  return end.first - known.begin();
}

bool Scheduler::Flights::MayFollow(const State& state) const {
  // Beams that come back share only some of the tokens.
  return least_tokens_ > 0 && state.num_follows < kMostFollows && state.beams.empty() &&
         !state.request().params.cache.bypass_read && state.first_row() != 0;
}

bool Scheduler::Flights::TryFollow(State& state) {
  if (!MayFollow(state)) return false;
  if (TryFollowLoad(state)) return true;
  if (std::exchange(state.leaders_seen, num_leaders_) == num_leaders_) return false;
  const std::span<const int32_t> tokens = Shareable(state.sequence->tokens, state.window());
  State* best = nullptr;
  int64_t overlap = 0;
  for (State* leader : leaders_) {
    if (leader->group->root_key != state.group->root_key) continue;
    const int64_t common = Overlap(*leader, tokens);
    if (common <= overlap) continue;
    best = leader;
    overlap = common;
  }
  if (best == nullptr) return false;
  const int64_t num_cached = blocks_.NumCached(state.group->root_key, tokens, state.group->on);
  if (overlap - num_cached < least_tokens_) return false;
  Follow(state, *best, overlap);
  return true;
}

Scheduler::State* Scheduler::Flights::LoadOf(const State& state) const {
  const PinId on = state.group->on;
  if (on == kNoPin || blocks_.IsPinned(on)) return nullptr;
  const auto it = loads_.find(on);
  return it == loads_.end() ? nullptr : it->second;
}

bool Scheduler::Flights::TryFollowLoad(State& state) {
  State* const load = LoadOf(state);
  if (load == nullptr) return false;
  const bool is_near =
      load->group->tenant == state.group->tenant && load->priority >= state.priority;
  if (load->phase != State::Phase::kRunning && !is_near) return false;
  Follow(state, *load, kToItsEnd);
  return true;
}

Scheduler::State* Scheduler::Flights::WaitingLoad(const State& state) const {
  State* const load = MayFollow(state) ? LoadOf(state) : nullptr;
  const bool waits = load != nullptr && load->phase == State::Phase::kWaiting &&
                     load->turn == State::Turn::kIn && load->in_flight == 0 &&
                     !waiting_.IsHeld(load->group->tenant);
  return waits ? load : nullptr;
}

void Scheduler::Flights::Follow(State& state, State& leader, int64_t overlap) {
  waiting_.Follow(state);
  state.leader = &leader;
  state.overlap = overlap;
  ++state.num_follows;
  followers_.push_back(&state);
  ++leader.num_followers;
  leader.next_overlap = std::min(leader.next_overlap, overlap);
}

void Scheduler::Flights::Return(State& follower, FollowEnd end) {
  --std::exchange(follower.leader, nullptr)->num_followers;
  ++ends_[static_cast<size_t>(end)];
  if (end != FollowEnd::kEnded) waiting_.Return(follower);
}

bool Scheduler::Flights::ReturnUpTo(State& leader, int64_t num_computed, FollowEnd end) {
  if (leader.num_followers == 0 || leader.next_overlap > num_computed) return false;
  leader.next_overlap = kToItsEnd;
  const size_t num_returned = std::erase_if(followers_, [&](State* follower) {
    if (follower->leader != &leader) return false;
    if (follower->overlap > num_computed) {
      leader.next_overlap = std::min(leader.next_overlap, follower->overlap);
      return false;
    }
    Return(*follower, end);
    return true;
  });
  return num_returned > 0;
}

bool Scheduler::Flights::NoteComputed(State& leader) {
  const int64_t num_computed = leader.sequence->num_computed;
  if (num_computed >= leader.lead_end) StopLeading(leader);
  return ReturnUpTo(leader, num_computed, FollowEnd::kServed);
}

void Scheduler::Flights::StopLeading(State& leader) {
  if (!std::exchange(leader.leads, false)) return;
  leaders_.erase(std::ranges::find(leaders_, &leader));
}

void Scheduler::Flights::Stop(State& leader) {
  StopLeading(leader);
  const PinId pin = leader.request().pins;
  const bool is_there = pin != kNoPin && blocks_.IsPinned(pin);
  ReturnUpTo(leader, kToItsEnd, is_there ? FollowEnd::kServed : FollowEnd::kReturned);
}

void Scheduler::Flights::End(State& state) {
  if (const PinId pin = state.request().pins; pin != kNoPin) loads_.erase(pin);
  Stop(state);
  if (state.leader == nullptr) return;
  followers_.erase(std::ranges::find(followers_, &state));
  Return(state, FollowEnd::kEnded);
}

void Scheduler::Flights::CheckInvariants() const {
  for (const State* leader : leaders_) {
    QUIRE_CHECK(leader->leads && leader->phase == State::Phase::kRunning);
    QUIRE_CHECK(leader->sequence->num_computed < leader->lead_end)
        << "sequence " << leader->sequence->id << " has nothing left to lead with";
  }
  for (const State* follower : followers_) {
    const SequenceId id = follower->sequence->id;
    QUIRE_CHECK(follower->phase == State::Phase::kWaiting && follower->leader != nullptr)
        << "sequence " << id << " follows nobody";
    const State& leader = *follower->leader;
    if (follower->overlap == kToItsEnd) {
      const auto load = loads_.find(follower->group->on);
      QUIRE_CHECK(load != loads_.end() && load->second == &leader) << "sequence " << id;
      continue;
    }
    QUIRE_CHECK(leader.leads && leader.sequence->num_computed < follower->overlap)
        << "sequence " << id << " waits for what is there";
    QUIRE_CHECK(
        leader.group->root_key == follower->group->root_key &&
        SameTokens(leader.sequence->tokens, follower->sequence->tokens, 0, follower->overlap))
        << "sequence " << id << " waits for tokens that are not its own";
  }
}

}  // namespace quire::engine
