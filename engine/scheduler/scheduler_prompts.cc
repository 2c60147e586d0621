// How the prompts of a step share the tokens that its decodes leave.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "engine/scheduler/flights.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/waiting.h"

namespace quire::engine {
namespace {

// When other sequences are planned before the oldest, 1 / kOldestShare of a step's prefill tokens
// is kept for the oldest.
constexpr int32_t kOldestShare = 8;

// A step looks at the first sequences of at most so many tenants that wait.
constexpr size_t kMostTenants = 16;

}  // namespace

int32_t Scheduler::ChunkLimit(const State& state, const Budget& budget) const {
  int64_t limit = std::min<int64_t>(budget.tokens, state.num_tokens() - state.num_planned);
  if (const int64_t rows = state.NumRows(limit); rows > budget.logit_rows) {
    limit -= rows - budget.logit_rows;
  }
  if (const CacheWindow& window = state.window(); window.on()) {
    limit = std::min(limit, window.NextShift(state.num_planned) - state.num_planned);
  }
  return static_cast<int32_t>(limit);
}

// Returns the budget of a tenant's prompts of one priority.
Scheduler::TenantBudget& Scheduler::BudgetOf(TenantShares::TenantId tenant, int32_t priority) {
  for (TenantBudget& budget : budgets_) {
    if (budget.tenant == tenant && budget.priority == priority) return budget;
  }
  return budgets_.emplace_back(TenantBudget{.tenant = tenant, .priority = priority});
}

// Fills budgets_, one for each tenant with prompts: what is kept for them while the prompts of
// others are planned. scratch_ has the prompts that run; a tenant that has none there may start its
// first waiting sequence. Tenants of one priority get as much as they have use for, and at most in
// proportion to their shares. If there is only one tenant, budgets_ is empty.
void Scheduler::DivideBudget(const Budget& budget) {
  budgets_.clear();
  if (shares_.num_active() <= 1) return;
  int32_t highest = INT32_MIN;
  for (const State* state : scratch_) {
    highest = std::max(highest, state->priority);
    TenantBudget& own = BudgetOf(state->group->tenant, state->priority);
    const auto left = static_cast<int32_t>(state->num_tokens() - state->num_planned);
    ++own.num_prompts;
    own.wanted.tokens += left;
    own.wanted.logit_rows += state->NumRows(left);
  }
  waiting_->FirstOfTenants(kMostTenants, heads_);
  const size_t num_running = budgets_.size();
  for (State* head : heads_) {
    const auto runs = [head](const TenantBudget& b) { return b.tenant == head->group->tenant; };
    if (std::any_of(budgets_.begin(), budgets_.begin() + num_running, runs)) continue;
    if (IsBarred(*head)) continue;
    // Prompts that run do not wait for those that are to start, whatever their priorities.
    TenantBudget& own = BudgetOf(head->group->tenant, std::min(head->priority, highest));
    own.wanted.tokens = static_cast<int32_t>(NumUncached(*head));
    own.wanted.logit_rows = head->first_row() ? own.wanted.tokens : 0;
  }
  std::ranges::stable_sort(budgets_, std::greater(), &TenantBudget::priority);
  Divide(&Budget::tokens, budget.tokens);
  Divide(&Budget::logit_rows, budget.logit_rows);
  // From here on, a tenant's prompts of all priorities share what is kept for it.
  for (size_t i = 0; i < budgets_.size(); ++i) {
    for (size_t k = budgets_.size(); --k > i;) {
      if (budgets_[k].tenant != budgets_[i].tenant) continue;
      budgets_[i].num_prompts += budgets_[k].num_prompts;
      budgets_[i].kept.tokens += budgets_[k].kept.tokens;
      budgets_[i].kept.logit_rows += budgets_[k].kept.logit_rows;
      budgets_.erase(budgets_.begin() + k);
    }
  }
  if (budgets_.size() <= 1) budgets_.clear();
}

// Divides `left` between budgets_, which are ordered by priority. What one has no use for goes to
// the others.
void Scheduler::Divide(int32_t Budget::*what, int32_t left) {
  for (size_t begin = 0, end = 0; begin < budgets_.size(); begin = end) {
    while (end < budgets_.size() && budgets_[end].priority == budgets_[begin].priority) ++end;
    const std::span<TenantBudget> equals = std::span(budgets_).subspan(begin, end - begin);
    const auto wants = [what](const TenantBudget& b) { return b.kept.*what < b.wanted.*what; };
    while (left > 0 && std::ranges::any_of(equals, wants)) {
      int64_t shares = 0;
      for (const TenantBudget& b : equals) shares += wants(b) ? shares_.share(b.tenant) : 0;
      const int64_t all = left;
      for (TenantBudget& b : equals) {
        if (!wants(b)) continue;
        const auto part = std::max<int64_t>(1, all * shares_.share(b.tenant) / shares);
        const auto more = static_cast<int32_t>(
            std::min({part, int64_t{left}, int64_t{b.wanted.*what} - b.kept.*what}));
        b.kept.*what += more;
        left -= more;
      }
    }
  }
}

void Scheduler::PlanPrefills(absl::Time now, Budget& budget, StepPlan& plan) {
  if (!any_prefill_ && !any_stalled_prefill_ && claimed_ == nullptr) return;
  scratch_.clear();
  for (State* state : running_) {
    const bool is_prompt =
        !state->IsDecode() && !state->AwaitsToken() && !IsToOpen(*state) && !state->runs_beams();
    if (!is_prompt && state != claimed_) continue;
    if (state->last_step == plan.step) continue;  // its continuation was opened in this step
    scratch_.push_back(state);
  }
  if (scratch_.empty()) return;
  std::ranges::sort(scratch_, {}, [this](const State* s) {
    return std::tuple(s != claimed_, -s->priority, s->order);
  });
  // The oldest sequence is planned whatever the priorities of the others, so a share of the budget
  // is kept for it. It also gets what the sequences before it do not use.
  const State* const oldest = Oldest();
  const bool keep = std::ranges::find(scratch_, oldest) != scratch_.end();
  Budget kept{.tokens = keep ? std::max(1, budget.tokens / kOldestShare) : 0,
              .logit_rows = keep ? std::max(1, budget.logit_rows / kOldestShare) : 0};
  budget.tokens -= kept.tokens;
  budget.logit_rows -= kept.logit_rows;
  DivideBudget(budget);
  for (State* state : scratch_) {
    if (state == oldest) {
      budget.tokens += kept.tokens;
      budget.logit_rows += kept.logit_rows;
    }
    // An earlier sequence may have preempted this one in this loop.
    if (state->phase != State::Phase::kRunning) continue;
    Budget own = budget;
    TenantBudget* mine = nullptr;
    for (TenantBudget& tenant : budgets_) {
      if (tenant.tenant == state->group->tenant) {
        mine = &tenant;
        continue;
      }
      own.tokens -= tenant.kept.tokens;
      own.logit_rows -= tenant.kept.logit_rows;
    }
    const int32_t least = state == claimed_ ? 1 : 0;  // it has started, so it must run
    own.tokens = std::max(least, own.tokens);
    own.logit_rows = std::max(least, own.logit_rows);
    const Budget before = own;
    TryPlanPrefill(*state, now, own, plan);
    const Budget used{.tokens = before.tokens - own.tokens,
                      .logit_rows = before.logit_rows - own.logit_rows};
    budget.tokens -= used.tokens;
    budget.logit_rows -= used.logit_rows;
    if (mine == nullptr) continue;
    mine->kept.tokens = std::max(0, mine->kept.tokens - used.tokens);
    mine->kept.logit_rows = std::max(0, mine->kept.logit_rows - used.logit_rows);
    if (--mine->num_prompts == 0) mine->kept = {};
  }
}

bool Scheduler::TryPlanPrefill(State& state, absl::Time now, Budget& budget, StepPlan& plan) {
  const int32_t chunk = ChunkLimit(state, budget);
  if (chunk <= 0) return false;
  const bool ends = state.num_planned + chunk == state.num_tokens();
  const int32_t rows = state.NumRows(chunk);
  if (ends || rows > 0) {
    if (!SinkCanTake(state, ends ? state.num_samples() : 1, now)) {
      flights_->Stop(state);
      return false;
    }
  }
  if (!state.window().on()) {
    // The sequence took all its blocks when it started, or when its continuation opened.
    QUIRE_CHECK(blocks_.TryGrow(state.sequence->id, state.num_planned + chunk))
        << "sequence " << state.sequence->id;
  } else if (WaitsForQuota(state, state.num_planned + chunk)) {
    return false;
  } else if (!MakeRoom(state, state.num_planned + chunk)) {
    NoteLack(state);
    return false;
  }
  PlanChunk(state, chunk, 0, plan);
  FlushCharge();
  budget.tokens -= chunk;
  budget.logit_rows -= rows;
  return true;
}

}  // namespace quire::engine
