#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "engine/scheduler/flights.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/waiting.h"

namespace quire::engine {
namespace {

PinId PinOf(const Request& request) {
  return request.prefix == nullptr ? kNoPin : request.prefix->pin;
}

// Takes the memory for all tokens. An unbounded stream reserves only its window in advance.
void ReserveTokens(Sequence& sequence) {
  const CacheWindow& window = sequence.request->cache_window;
  sequence.tokens.reserve(sequence.tokens.size() +
                          (window.on() ? window.capacity() : sequence.request->max_tokens));
}

}  // namespace

std::string RootKeyOf(std::string_view model, uint64_t cache_epoch, const Request& request) {
  const GenerateParams& params = request.params;
  return absl::StrCat(cache_epoch, ":",
                      CacheRootKey(model, /*adapter=*/"", params.sched.tenant, params.cache.part,
                                   params.cache.salt, PinOf(request)));
}

Scheduler::Scheduler(const SchedulerConfig& config, BlockManager& blocks)
    : config_(config),
      blocks_(blocks),
      has_windows_(blocks.num_kv_groups() > 1),
      num_blocks_(blocks.stats().num_total),
      waiting_(std::make_unique<Waiting>(shares_, config.stalled_stream_timeout)),
      flights_(std::make_unique<Flights>(*waiting_, blocks, config.least_followed_blocks)),
      cache_epoch_(config.cache_epoch),
      starts_to_oldest_(config.starts_per_oldest) {
  QUIRE_CHECK(config.max_num_seqs > 0 && config.max_num_batched_tokens > 0 &&
              config.max_logit_rows > 0 && config.starts_per_oldest > 0 &&
              config.stalled_stream_timeout > absl::ZeroDuration());
  QUIRE_CHECK(config.pipeline_depth == 0 || config.pipeline_depth == 1)
      << "pipeline_depth " << config.pipeline_depth;
  QUIRE_CHECK(config.max_draft_tokens == 0 || config.pipeline_depth == 0)
      << "drafts at pipeline depth " << config.pipeline_depth;
  running_.reserve(config.max_num_seqs);
  scratch_.reserve(config.max_num_seqs);
}

Scheduler::~Scheduler() {
  for (const auto& [id, state] : states_) {
    if (state->runs_beams()) {
      ReleaseBeams(*state, {});
    } else if (blocks_.Holds(id)) {
      blocks_.Release(id);
    }
  }
}

std::shared_ptr<Scheduler::Group> Scheduler::NewGroup(const std::shared_ptr<Request>& request) {
  auto group = std::allocate_shared<Group>(base::RecordAllocator<Group>(records_));
  group->request = request;
  const GenerateParams& params = request->params;
  group->on = PinOf(*request);
  group->root_key = RootKeyOf(config_.model, cache_epoch_, *request);
  group->tenant = shares_.Enter(params.sched.tenant, params.limits.share);
  group->payer = blocks_.charges().Acquire(params.sched.tenant);
  group->max_blocks = params.limits.max_blocks;
  const auto tenant = static_cast<size_t>(group->tenant);
  if (tenant >= bars_.size()) bars_.resize(tenant + 1);
  group->sink = request->sink.get();
  return group;
}

void Scheduler::Add(Sequence sequence) {
  const std::shared_ptr<Request> request = sequence.request;
  const int32_t n = request->params.sampling.num_sequences();
  QUIRE_CHECK(n >= 1 && n <= config_.max_num_seqs && request->max_tokens >= 1 &&
              !sequence.tokens.empty() && sequence.sample_index == 0)
      << "sequence " << sequence.id;
  std::shared_ptr<Group> group = NewGroup(request);
  ReserveTokens(sequence);
  State& state = NewState(std::move(sequence), std::move(group), next_order_);
  next_order_ += n;
  waiting_->Add(state);
  flights_->Add(state);
  ++num_openings_;
}

int64_t Scheduler::NumUncached(const Request& request) {
  const int64_t num_tokens = std::ssize(request.prompt_ids);
  if (request.params.cache.bypass_read) return num_tokens;
  return num_tokens - blocks_.NumCached(RootKeyOf(config_.model, cache_epoch_, request),
                                        request.prompt_ids, PinOf(request));
}

int64_t Scheduler::NumPromptTokensLeft() const {
  int64_t num_tokens = 0;
  for (const State* state : running_) {
    if (state->forked || state->stalled()) continue;
    num_tokens += state->num_tokens() - state->num_planned;
  }
  return num_tokens;
}

void Scheduler::AddResumed(std::vector<Sequence> samples) {
  QUIRE_CHECK(!samples.empty());
  const std::shared_ptr<Request> request = samples.front().request;
  const std::shared_ptr<Group> group = NewGroup(request);
  for (Sequence& sample : samples) {
    QUIRE_CHECK(sample.request == request && sample.num_generated() >= 0 &&
                sample.num_generated() < request->max_tokens)
        << "sequence " << sample.id;
    ReserveTokens(sample);
    const auto index = static_cast<uint64_t>(sample.sample_index);
    State& state = NewState(std::move(sample), group, next_order_ + index);
    state.forked = true;
    waiting_->Add(state);
  }
  next_order_ += static_cast<uint64_t>(request->params.sampling.num_samples());
  ++num_openings_;
}

Scheduler::State& Scheduler::NewState(Sequence sequence, std::shared_ptr<Group> group,
                                      uint64_t order) {
  std::shared_ptr<State>& state = states_[sequence.id];
  QUIRE_CHECK(state == nullptr) << "sequence " << sequence.id << " exists";
  state = std::allocate_shared<State>(base::RecordAllocator<State>(records_));
  state->sequence = std::allocate_shared<Sequence>(records_, std::move(sequence));
  state->group = std::move(group);
  state->id = state->sequence->id;
  const Request& request = *state->group->request;
  state->group_request = &request;
  state->order = order;
  state->priority = request.params.sched.priority;
  state->guess_chance = guess_chance_;
  state->deadline = request.deadline;
  state->is_scoring = request.is_scoring();
  state->has_beams = request.has_beams();
  state->has_window = request.cache_window.on();
  state->wants_prompt_logprobs = request.params.output.prompt_logprobs.has_value();
  state->pins = request.pins;
  state->prompt_len = state->sequence->prompt_len();
  state->most_tokens = state->prompt_len + request.max_tokens;
  state->rises_at = request.arrival + Waiting::kRiseTime;
  ++state->group->num_left;
  return *state;
}

void Scheduler::AddPlaces(const State& state, int32_t num) {
  num_places_ += num;
  shares_.AddPlaces(state.group->tenant, num);
  if (num < 0) waiting_->Free(state.group->tenant);
}

void Scheduler::InsertRunning(State& state) {
  state.phase = State::Phase::kRunning;
  AddPlaces(state, state.num_samples());
  const auto place = std::ranges::upper_bound(running_, state.order, {}, &State::order);
  running_.insert(place, &state);
}

absl::Status Scheduler::Cancel(SequenceId id) {
  const auto it = states_.find(id);
  if (it == states_.end()) {
    return absl::NotFoundError(absl::StrCat("sequence ", id, " does not run"));
  }
  dropped_.push_back(End(*it->second, FinishReason::kAbort, EndCause::kCancelled));
  return absl::OkStatus();
}

std::vector<FinishedSequence> Scheduler::TakeDropped() {
  return std::exchange(dropped_, std::vector<FinishedSequence>());
}

void Scheduler::Reconsider(SequenceId id, absl::Time now) {
  const auto it = states_.find(id);
  if (it == states_.end()) return;
  State& state = *it->second;
  state.is_cancelled = state.request().cancelled.load(std::memory_order_acquire);
  if (state.phase != State::Phase::kWaiting) return;
  if (state.is_cancelled) {
    dropped_.push_back(End(state, FinishReason::kAbort, EndCause::kCancelled));
  } else if (waiting_->IsStalled(state) && SinkCanTake(state, state.num_samples(), now)) {
    waiting_->Resume(state);
    ++num_openings_;
  }
}

inline EndCause Scheduler::CauseOf(State& state, absl::Time now) {
  if (state.is_cancelled) return EndCause::kCancelled;
  if (state.deadline <= now) return EndCause::kDeadline;
  // A sink that has room for only some of the samples counts as stalled, too. Otherwise the
  // sequence could wait for ever.
  if (state.stalled() && now - state.stalled_since >= config_.stalled_stream_timeout &&
      !SinkCanTake(state, state.num_samples(), now)) {
    return EndCause::kStalled;
  }
  return EndCause::kFinished;
}

void Scheduler::DropEnded(absl::Time now) {
  any_prefill_ = any_stalled_prefill_ = any_to_open_ = false;
  for (size_t i = running_.size(); i-- > 0;) {  // backwards, because End() removes the element
    if (i >= 12) running_[i - 12]->Prefetch();
    if (i >= 6) __builtin_prefetch(running_[i - 6]->sequence.get(), 1);
    State& state = *running_[i];
    const EndCause cause = CauseOf(state, now);
    if (cause != EndCause::kFinished) {
      dropped_.push_back(End(state, FinishReason::kAbort, cause));
    } else if (!state.IsDecode() && !state.AwaitsToken() && !state.runs_beams()) {
      bool& any = IsToOpen(state)   ? any_to_open_
                  : state.stalled() ? any_stalled_prefill_
                                    : any_prefill_;
      any = true;
    }
  }
  while (State* state = waiting_->Due(now)) {
    const EndCause cause = CauseOf(*state, now);
    if (cause != EndCause::kFinished) {
      dropped_.push_back(End(*state, FinishReason::kAbort, cause));
    } else if (waiting_->IsStalled(*state)) {  // its sink has room after all
      waiting_->Resume(*state);
    } else {
      waiting_->UpdateDue(*state);
    }
  }
}

FinishedSequence Scheduler::End(State& state, FinishReason reason, EndCause cause) {
  const SequenceId id = state.sequence->id;
  if (state.phase == State::Phase::kRunning) {
    if (!state.is_void) CommitRest(state);
    if (cause == EndCause::kFinished) PinSession(state);
    if (state.runs_beams()) {
      ReleaseBeams(state, {.num_generated = state.sequence->num_generated()});
    } else if (state.is_void) {
      blocks_.ReleaseUnlisted(id);
    } else {
      blocks_.Release(id, {.num_generated = state.sequence->num_generated()});
    }
    AddPlaces(state, -state.num_samples());
    running_.erase(std::ranges::find(running_, &state));
  } else {
    waiting_->Remove(state);
  }
  flights_->End(state);
  if (claimant_ == &state) claimant_ = nullptr;
  state.phase = State::Phase::kEnded;
  state.sequence->finish_reason = reason;
  for (const std::shared_ptr<Sequence>& beam : state.beams) beam->finish_reason = reason;
  if (--state.group->num_left == 0) {
    shares_.Leave(state.group->tenant);
    blocks_.charges().Release(state.group->payer);
  }

  FinishedSequence finished{.sequence = state.sequence, .cause = cause};
  const auto it = states_.find(id);
  ended_.push_back(std::move(it->second));
  states_.erase(it);
  ++num_openings_;
  return finished;
}

void Scheduler::Unpin(PinId pin) {
  blocks_.Unpin(pin);
  ++num_openings_;
}

void Scheduler::Recycle(StepPlan plan) {
  plan.entries.clear();
  plan.drafts.clear();
  plan.copies.clear();
  plan.shifts.clear();
  if (spare_plans_.size() < 2) spare_plans_.push_back(std::move(plan));
}

absl::Time Scheduler::NextWakeup() const {
  absl::Time next = waiting_->next_due();
  for (const State* state : running_) {
    next = std::min({next, state->deadline, state->stalled_since + config_.stalled_stream_timeout});
  }
  return next;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.num_waiting = waiting_->size();
  stats.num_running = 0;
  for (const State* state : running_) {
    stats.num_running += state->runs_beams() ? std::ssize(state->beams) : 1;
  }
  stats.num_stalled = waiting_->num_stalled() + std::ranges::count_if(running_, &State::stalled);
  stats.followers = flights_->ends();
  stats.num_tenants = shares_.num_active();
  return stats;
}

void Scheduler::CheckInvariants() const {
  int32_t places = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    const State& state = *running_[i];
    places += state.num_samples();
    QUIRE_CHECK(state.phase == State::Phase::kRunning && blocks_.Holds(state.sequence->id));
    QUIRE_CHECK(i == 0 || running_[i - 1]->older_than(state)) << "running_ is not oldest first";
    QUIRE_CHECK(state.num_planned <= state.num_tokens() + state.unsampled &&
                state.sequence->num_computed <= state.num_planned);
    QUIRE_CHECK(state.window().NumShifts(state.num_planned - 1) == state.num_shifts ||
                state.num_planned == 0)
        << "sequence " << state.sequence->id << ": " << state.num_shifts << " shifts, "
        << state.num_planned << " tokens";
    QUIRE_CHECK(state.in_flight > 0 || state.num_planned == state.sequence->num_computed);
  }
  int64_t num_waiting = 0;
  int64_t num_stalled = 0;
  for (const auto& [id, state] : states_) {
    if (state->phase != State::Phase::kWaiting) continue;
    ++num_waiting;
    num_stalled += waiting_->IsStalled(*state) ? 1 : 0;
    QUIRE_CHECK(!blocks_.Holds(id) && state->sequence->num_computed == 0);
    QUIRE_CHECK(state->stalled() || !waiting_->IsStalled(*state)) << "sequence " << id;
  }
  QUIRE_CHECK(num_waiting == waiting_->size() && num_stalled == waiting_->num_stalled())
      << num_waiting << " wait, " << num_stalled << " of them stalled";
  QUIRE_CHECK(places == num_places_ && places <= config_.max_num_seqs)
      << places << " places, " << num_places_ << " known of";
  QUIRE_CHECK(static_cast<int64_t>(states_.size()) == std::ssize(running_) + num_waiting);
  flights_->CheckInvariants();
  blocks_.CheckInvariants();
}

}  // namespace quire::engine
