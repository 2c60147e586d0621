#include "tests/engine/scheduler/simulation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "tests/testing/seen_keys.h"

namespace quire::engine {
namespace {

uint64_t Mix(uint64_t h, uint64_t value) {
  h = (h ^ value) + 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

// Returns the hash of the tenant and the salt. The hash of every context starts from it, so a
// request that reads the context of another tenant or salt is detected.
uint64_t RootHash(const RequestSpec& spec) {
  const std::string& tenant = spec.owner.empty() ? spec.tenant : spec.owner;
  return Mix(std::hash<std::string>()(tenant), std::hash<std::string>()(spec.salt));
}

// Draws the token that follows `num_generated` generated tokens. `context` is a hash of all tokens
// before the drawn one.
SampledToken Draw(const RequestSpec& spec, int32_t k, uint64_t context, int64_t num_generated) {
  const uint64_t draw = Mix(context, spec.seed + static_cast<uint64_t>(k));
  SampledToken token{.id = static_cast<int32_t>(draw % 5)};
  if (spec.stop_one_in > 0 && (draw >> 32) % spec.stop_one_in == 0) {
    token.finish_reason = FinishReason::kStop;
  } else if (num_generated + 1 == spec.max_tokens) {
    token.finish_reason = FinishReason::kLength;
  }
  return token;
}

// Replaces zeros in the scheduler's configuration by defaults.
SimulationConfig Complete(SimulationConfig config) {
  SchedulerConfig& limits = config.scheduler;
  if (limits.max_num_seqs == 0) limits.max_num_seqs = 64;
  if (limits.max_num_batched_tokens == 0) limits.max_num_batched_tokens = 512;
  if (limits.max_logit_rows == 0) limits.max_logit_rows = 64;
  if (limits.stalled_stream_timeout == absl::ZeroDuration()) {
    limits.stalled_stream_timeout = absl::Seconds(30);
  }
  return config;
}

BlockManagerConfig BlocksOf(const SimulationConfig& config) {
  BlockManagerConfig blocks = {.num_blocks = config.num_blocks,
                               .block_size = config.block_size,
                               .windows = {},
                               .max_step_tokens = config.scheduler.max_num_batched_tokens,
                               .pipeline_depth = config.scheduler.pipeline_depth};
  for (const kernels::AttentionPattern& pattern : config.patterns) {
    const int64_t least = config.full_windows * WindowBlocksPerSequence(pattern, blocks);
    blocks.windows.push_back(
        {.pattern = pattern,
         .num_blocks = static_cast<int32_t>(least) + config.spare_window_blocks});
  }
  return blocks;
}

}  // namespace

std::vector<int32_t> Prompt(int32_t n, int32_t first) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Simulation::Simulation(const SimulationConfig& config)
    : config_(Complete(config)),
      blocks_(BlocksOf(config_)),
      scheduler_(config_.scheduler, blocks_) {
  kv_.emplace_back(int64_t{config.num_blocks} * config.block_size);
  for (const KvWindow& window : BlocksOf(config_).windows) {
    kv_.emplace_back(int64_t{window.num_blocks} * config.block_size);
  }
}

SequenceId Simulation::Add(const RequestSpec& spec) {
  const CacheWindow window = WindowOf(spec);
  QUIRE_CHECK(window.on() ? window.MostHeld() <= int64_t{config_.num_blocks} * config_.block_size
                          : blocks_.FitsEmpty(static_cast<int64_t>(spec.prompt.size()),
                                              spec.max_tokens, std::max(1, spec.beam_width)))
      << "not feasible";
  const SequenceId id = next_id_;
  next_id_ += std::max(spec.n, spec.beam_width);
  specs_[id] = spec;
  sinks_[id] = std::make_shared<FakeSink>();
  auto request = std::make_shared<Request>();
  request->prompt_ids = spec.prompt;
  request->max_tokens = spec.max_tokens;
  request->cache_window = window;
  request->seed = spec.seed;
  request->arrival = now;
  request->sink = sinks_[id];
  request->params.sampling.n = spec.n;
  if (spec.beam_width > 0) {
    request->params.sampling.beam = {.width = spec.beam_width};
    searches_[id] = SearchAlone(spec);
  }
  request->params.sched = {.priority = spec.priority, .tenant = spec.tenant};
  request->params.limits = spec.limits;
  request->params.cache = {
      .salt = spec.salt, .bypass_read = spec.bypass_read, .bypass_write = spec.bypass_write};
  request->continuation_ids = spec.continuations;
  if (spec.prompt_logprobs) request->params.output.prompt_logprobs = 1;
  request->deadline = spec.deadline;
  request->pins = spec.pins;
  if (spec.on != kNoPin) {
    auto prefix = std::make_shared<PrefixContent>();
    prefix->pin = spec.on;
    request->prefix = std::move(prefix);
  }
  requests_[id] = request;
  Sequence sequence;
  sequence.id = id;
  sequence.request = request;
  sequence.tokens = request->prompt_ids;
  scheduler_.Add(std::move(sequence));
  return id;
}

void Simulation::Cancel(SequenceId first) {
  requests_.at(first)->cancelled = true;
  for (int32_t k = 0; k < specs_.at(first).n; ++k) scheduler_.Reconsider(first + k, now);
}

const RequestSpec& Simulation::SpecOf(const Sequence& sequence) const {
  return specs_.at(sequence.id - sequence.sample_index);
}

CacheWindow Simulation::WindowOf(const RequestSpec& spec) const {
  if (spec.window_tokens == 0) return {};
  return CacheWindow::Of(spec.sink_tokens, spec.window_tokens, config_.block_size);
}

std::vector<int32_t> Simulation::Alone(const RequestSpec& spec, int32_t k) {
  if (!spec.continuations.empty()) return spec.continuations[k];
  if (spec.beam_width > 0) return SearchAlone(spec).generated.back()[k];
  std::vector<int32_t> generated;
  uint64_t context = RootHash(spec);
  for (const int32_t token : spec.prompt) context = Mix(context, token);
  while (true) {
    const SampledToken token = Draw(spec, k, context, static_cast<int64_t>(generated.size()));
    generated.push_back(token.id);
    if (token.finish_reason != FinishReason::kNone) return generated;
    context = Mix(context, token.id);
  }
}

// The best tokens after a beam are drawn from a hash of its tokens, so each beam may get several
// children, and each is as likely to end up in any place.
Simulation::Search Simulation::SearchAlone(const RequestSpec& spec) {
  struct Candidate {
    uint64_t score = 0;
    int32_t parent = 0;
    int32_t id = 0;
  };
  const auto width = static_cast<size_t>(spec.beam_width);
  uint64_t prompt = RootHash(spec);
  for (const int32_t token : spec.prompt) prompt = Mix(prompt, token);
  Search search;
  std::vector<std::vector<int32_t>> beams(width);
  while (true) {
    search.generated.push_back(beams);
    const bool is_first = search.draws.empty();
    std::vector<Candidate> candidates;
    uint64_t all = spec.seed;
    for (size_t b = 0; b < (is_first ? 1 : width); ++b) {
      uint64_t context = prompt;
      for (const int32_t token : beams[b]) context = Mix(context, token);
      all = Mix(all, context);
      for (int32_t id = 0; id < spec.beam_width + 3; ++id) {
        candidates.push_back({Mix(context, spec.seed + id), static_cast<int32_t>(b), id});
      }
    }
    std::ranges::sort(candidates, {}, &Candidate::score);
    candidates.resize(width);
    FinishReason reason = FinishReason::kNone;
    if (std::ssize(beams[0]) + 1 == spec.max_tokens) reason = FinishReason::kLength;
    if (spec.stop_one_in > 0 && (all >> 32) % spec.stop_one_in == 0) reason = FinishReason::kStop;
    // The first child of a beam takes its place, and the others take those that are left.
    std::vector<SampledToken> draws(width, SampledToken{.parent = -1});
    const auto put = [&](size_t place, const Candidate& child) {
      draws[place] = {.id = child.id, .finish_reason = reason, .parent = child.parent};
    };
    std::vector<Candidate> others;
    for (const Candidate& child : candidates) {
      if (draws[child.parent].parent < 0) {
        put(child.parent, child);
      } else {
        others.push_back(child);
      }
    }
    size_t place = 0;
    for (const Candidate& child : others) {
      while (draws[place].parent >= 0) ++place;
      put(place, child);
    }
    const std::vector<std::vector<int32_t>> before = beams;
    for (size_t k = 0; k < width; ++k) {
      beams[k] = before[draws[k].parent];
      beams[k].push_back(draws[k].id);
    }
    search.draws.push_back(std::move(draws));
    if (reason != FinishReason::kNone) return search;
  }
}

bool Simulation::Planned(SequenceId id) const {
  return std::ranges::find(planned_, id) != planned_.end();
}

StepPlanEntry Simulation::Entry(SequenceId id) const {
  const auto i = std::ranges::find(planned_, id) - planned_.begin();
  QUIRE_CHECK(i < std::ssize(planned_)) << "sequence " << id << " is not in the plan";
  return last_plan_.entries[i];
}

void Simulation::CheckPlan(const StepPlan& plan) {
  const SchedulerConfig& limits = config_.scheduler;
  int64_t num_tokens = 0;
  int64_t num_prompt_rows = 0;
  bool prefills = false;
  std::set<SequenceId> ids;
  std::set<int32_t> written;
  for (const StepPlanEntry& entry : plan.entries) {
    const Sequence& sequence = *entry.sequence;
    QUIRE_CHECK(ids.insert(sequence.id).second) << "planned twice";
    QUIRE_CHECK(sequence.finish_reason == FinishReason::kNone) << "planned after its end";
    QUIRE_CHECK(entry.num_tokens > 0);
    num_tokens += entry.num_tokens;
    const bool decode = entry.num_own_tokens() == 1 && entry.first_index >= sequence.prompt_len() &&
                        entry.first_index + 1 >= static_cast<int64_t>(sequence.tokens.size());
    QUIRE_CHECK(entry.num_drafts <= limits.max_draft_tokens);
    // Only a decode of all known tokens has drafts, and each draft has a row.
    QUIRE_CHECK(entry.num_drafts == 0 ||
                (entry.num_own_tokens() == 1 && entry.num_samples == 1 &&
                 entry.first_index + 1 == static_cast<int64_t>(sequence.tokens.size()) &&
                 entry.num_logit_rows == 1 + entry.num_drafts));
    QUIRE_CHECK(entry.num_drafts == 0 ||
                sequence.num_generated() + 1 + entry.num_drafts <= sequence.request->max_tokens)
        << "drafts beyond the end";
    // An entry that looks like a decode may be a restart with just one token left to compute. A
    // sequence restarts after a preemption. A later sample may also start in this way, if the first
    // sample of its request was preempted.
    const bool restart = sequence.num_preemptions > 0 || sequence.sample_index > 0;
    QUIRE_CHECK(!decode || !prefills || restart) << "decodes come first";
    // The first token of a continuation is planned with the decodes, and so are the tokens that
    // beams compute again.
    prefills |= !decode && !sequence.request->has_beams() &&
                !(sequence.request->is_scoring() && entry.num_tokens == 1);
    if (entry.num_drafts > 0) {
      num_prompt_rows += entry.num_drafts;
    } else if (entry.num_logit_rows > 1) {
      num_prompt_rows += entry.num_logit_rows;
    }
    QUIRE_CHECK(entry.num_samples == 0 || entry.num_logit_rows > 0);
    QUIRE_CHECK(entry.num_logit_rows <= entry.num_tokens);

    const std::span<const int32_t> table = blocks_.Table(sequence.id);
    const CacheWindow window = WindowOf(SpecOf(sequence));
    QUIRE_CHECK(window.Position(entry.first_index) == entry.first_position);
    QUIRE_CHECK(window.NumShifts(entry.first_index) ==
                window.NumShifts(entry.first_index + entry.num_tokens - 1))
        << "a chunk beyond a shift";
    QUIRE_CHECK(!window.on() ||
                static_cast<int64_t>(table.size()) * config_.block_size <= window.capacity());
    const int64_t end = entry.first_position + entry.num_tokens;
    QUIRE_CHECK(end <= static_cast<int64_t>(table.size()) * config_.block_size);
    for (int64_t i = entry.first_position / config_.block_size; i * config_.block_size < end; ++i) {
      QUIRE_CHECK(written.insert(table[i]).second) << "two write block " << table[i];
    }
  }
  QUIRE_CHECK(num_tokens == plan.num_tokens && num_tokens <= limits.max_num_batched_tokens);
  QUIRE_CHECK(static_cast<int32_t>(plan.entries.size()) <= limits.max_num_seqs);
  QUIRE_CHECK(num_prompt_rows <= limits.max_logit_rows);
  const SchedulerStats stats = scheduler_.stats();
  QUIRE_CHECK((stats.drafted_tokens > drafted_) == !plan.drafts.empty());
  QUIRE_CHECK(stats.drafts_expected - drafts_expected_ >= stats.drafts_price - drafts_price_)
      << "a draft that does not pay";
  drafted_ = stats.drafted_tokens;
  drafts_expected_ = stats.drafts_expected;
  drafts_price_ = stats.drafts_price;
  max_prompt_rows = std::max(max_prompt_rows, num_prompt_rows);
  std::set<int32_t> shifted;
  for (const kernels::KeyShift& shift : plan.shifts) {
    QUIRE_CHECK(shifted.insert(shift.block).second) << "two shifts of block " << shift.block;
  }
  num_shifted_blocks += std::ssize(shifted);
}

// Checks that no request is handed more deltas than its sink has room for. The deltas of all
// samples and of all steps in flight count together.
void Simulation::CheckSinks(const StepPlan& plan) const {
  const auto add = [](const StepPlan& step, std::map<const Request*, int32_t>& deltas) {
    for (const StepPlanEntry& entry : step.entries) {
      if (entry.sequence->request->has_beams()) continue;  // its answers come at its end
      const int32_t n = std::max(entry.num_draws(), entry.num_logit_rows > 0 ? 1 : 0);
      if (n > 0) deltas[entry.sequence->request.get()] += n;
    }
  };
  std::map<const Request*, int32_t> planned;
  std::map<const Request*, int32_t> in_flight;
  add(plan, planned);
  for (const Submitted& step : submitted_) add(step.plan, in_flight);
  for (const auto& [request, deltas] : planned) {
    QUIRE_CHECK(request->sink->CanTake(deltas + in_flight[request]))
        << deltas << " deltas planned, " << in_flight[request] << " in flight";
  }
}

void Simulation::CheckCopies(const std::vector<kernels::BlockCopy>& copies) const {
  std::set<int32_t> sources;
  std::set<int32_t> destinations;
  for (const kernels::BlockCopy& copy : copies) {
    QUIRE_CHECK(copy.source >= 0 && copy.destination >= 0) << "a copy of nothing";
    sources.insert(copy.source);
    QUIRE_CHECK(destinations.insert(copy.destination).second) << "two copies into one block";
  }
  for (const int32_t block : sources) {
    // No copy may overwrite the source of another copy. The step's rows may write to a source,
    // because all copies run before the rows.
    QUIRE_CHECK(!destinations.contains(block)) << "block " << block << " is copied twice over";
  }
}

Simulation::Submitted Simulation::Submit(StepPlan plan) const {
  Submitted step{.plan = std::move(plan)};
  step.copies.resize(kv_.size());
  for (const StepPlanEntry& entry : step.plan.entries) {
    const Sequence& sequence = *entry.sequence;
    const std::span<const int32_t> table = blocks_.Table(sequence.id);
    Row row{.id = sequence.id,
            .spec = &SpecOf(sequence),
            .sample_index = sequence.sample_index,
            .num_known = static_cast<int64_t>(sequence.tokens.size()),
            .tokens = sequence.tokens};
    for (int32_t group = 0; group < blocks_.num_kv_groups(); ++group) {
      std::vector<int32_t>& blocks = row.tables.emplace_back(table.size(), -1);
      const BlockTable::Run run = blocks_.RunIn(group, sequence.id);
      for (int64_t i = run.begin; i < run.end; ++i) blocks[i] = blocks_.BlockIn(group, table[i]);
    }
    step.rows.push_back(std::move(row));
  }
  for (int32_t group = 0; group < blocks_.num_kv_groups(); ++group) {
    for (const kernels::BlockCopy& copy : step.plan.copies) {
      step.copies[group].push_back({.source = blocks_.BlockIn(group, copy.source),
                                    .destination = blocks_.BlockIn(group, copy.destination)});
    }
    CheckCopies(step.copies[group]);
  }
  return step;
}

int64_t Simulation::FirstRead(size_t group, int64_t position) const {
  return group == 0 ? 0 : testing::FirstSeenKey(config_.patterns[group - 1], position);
}

bool Simulation::Step() {
  // A test may have changed any request or sink, so the scheduler reconsiders every sequence.
  for (const auto& [first, spec] : specs_) {
    for (int32_t k = 0; k < spec.n; ++k) scheduler_.Reconsider(first + k, now);
  }
  StepPlan plan = scheduler_.Schedule(now);
  Note(scheduler_.TakeDropped());
  last_plan_ = plan;
  planned_.clear();
  for (const StepPlanEntry& entry : plan.entries) planned_.push_back(entry.sequence->id);
  const bool planned = !plan.empty();
  if (planned) {
    CheckPlan(plan);
    CheckSinks(plan);
    submitted_.push_back(Submit(std::move(plan)));
  }
  scheduler_.CheckInvariants();
  bool completed = false;
  if (static_cast<int32_t>(submitted_.size()) > config_.scheduler.pipeline_depth ||
      (!planned && !submitted_.empty())) {
    Submitted step = std::move(submitted_.front());
    submitted_.pop_front();
    if (std::exchange(fail_next, false)) {
      previous_.tokens.clear();
      for (const StepPlanEntry& entry : step.plan.entries) {
        previous_.tokens.resize(previous_.tokens.size() + entry.num_draws());
      }
      Note(scheduler_.Fail(step.plan));
    } else {
      previous_ = Execute(step);
      Note(scheduler_.Complete(step.plan, previous_));
    }
    scheduler_.CheckInvariants();
    scheduler_.Recycle(std::move(step.plan));
    completed = true;
  }
  return planned || completed;
}

SampledToken Simulation::Score(const StepPlanEntry& entry, const Row& row, int32_t k) {
  const std::vector<int32_t>& tokens = row.spec->continuations[row.sample_index + k];
  const auto size = static_cast<int64_t>(tokens.size());
  int64_t& num_scored = num_scored_[row.id + k];
  const auto prompt_len = static_cast<int64_t>(row.spec->prompt.size());
  const int64_t end = entry.first_index + entry.num_tokens;
  for (int64_t p = end - entry.num_logit_rows; p < end; ++p) {
    // The row of position p scores the token at p + 1.
    if (p - prompt_len + 1 == num_scored) ++num_scored;
  }
  if (entry.num_samples == 0) return {};
  if (row.num_known == prompt_len && size > 1) return {.id = tokens.front()};
  // Some steps of a sequence that was aborted may not have run.
  QUIRE_CHECK(num_scored == size || entry.sequence->finish_reason == FinishReason::kAbort)
      << num_scored << " rows of " << size;
  return {.id = tokens.back(), .finish_reason = FinishReason::kLength};
}

void Simulation::Verify(const StepPlan& plan, const StepPlanEntry& entry, const Row& row,
                        const std::vector<uint64_t>& contexts, SampledTokens& sampled) {
  const auto num_generated = static_cast<int64_t>(row.tokens.size() - row.spec->prompt.size());
  bool goes_on = true;
  for (int32_t i = 0; i <= entry.num_drafts; ++i) {
    if (!goes_on) {
      sampled.tokens.push_back({.id = SampledToken::kNotDrawn});
      continue;
    }
    sampled.tokens.push_back(Draw(*row.spec, row.sample_index, contexts[i], num_generated + i));
    goes_on = sampled.tokens.back().finish_reason == FinishReason::kNone && i < entry.num_drafts &&
              sampled.tokens.back().id == plan.drafts[entry.first_draft + i];
  }
}

void Simulation::DrawBeam(const StepPlanEntry& entry, const Row& row,
                          SampledTokens& sampled) const {
  const Search& search = searches_.at(row.id - row.sample_index);
  const auto begin = row.tokens.begin() + std::ssize(row.spec->prompt);
  const auto num_generated = static_cast<size_t>(row.tokens.end() - begin);
  const auto& want = search.generated.at(num_generated)[row.sample_index];
  QUIRE_CHECK(std::equal(begin, row.tokens.end(), want.begin(), want.end()))
      << "beam " << row.id << " has other tokens than alone";
  const std::vector<SampledToken>& draws = search.draws.at(num_generated);
  for (int32_t k = 0; k < entry.num_samples; ++k) {
    sampled.tokens.push_back(draws[row.sample_index + k]);
  }
}

SampledTokens Simulation::Execute(const Submitted& step) {
  const int32_t size = config_.block_size;
  for (size_t group = 0; group < kv_.size(); ++group) {
    for (const kernels::BlockCopy& copy : step.copies[group]) {
      std::copy_n(kv_[group].begin() + int64_t{copy.source} * size, size,
                  kv_[group].begin() + int64_t{copy.destination} * size);
    }
  }
  for (const kernels::KeyShift& shift : step.plan.shifts) {
    for (int32_t i = 0; i < size; ++i) {
      uint64_t& slot = kv_[0][int64_t{shift.block} * size + i];
      slot = Mix(slot, shift.distance);
    }
  }
  // All rows write before any row reads, as in a layer of a model.
  std::vector<std::vector<int32_t>> tokens;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const StepPlanEntry& entry = step.plan.entries[i];
    const Row& row = step.rows[i];
    tokens.push_back(row.tokens);
    if (entry.token_from_previous >= 0) {
      QUIRE_CHECK(entry.num_tokens == 1 && entry.first_index == row.num_known);
      tokens.back().push_back(previous_.tokens.at(entry.token_from_previous).id);
    }
    const auto drafts = step.plan.drafts.begin() + entry.first_draft;
    tokens.back().insert(tokens.back().end(), drafts, drafts + entry.num_drafts);
    uint64_t hash = RootHash(*row.spec);
    const int64_t end = entry.first_index + entry.num_tokens;
    QUIRE_CHECK(end <= static_cast<int64_t>(tokens.back().size())) << "a token nobody knows yet";
    for (int64_t j = 0; j < end; ++j) {
      hash = Mix(hash, tokens.back()[j]);
      if (j < entry.first_index) continue;
      const int64_t p = entry.first_position + j - entry.first_index;
      for (size_t group = 0; group < kv_.size(); ++group) {
        QUIRE_CHECK(row.tables[group][p / size] >= 0) << "nowhere to write to";
        kv_[group][int64_t{row.tables[group][p / size]} * size + p % size] = hash;
      }
    }
    num_token_rows += entry.num_tokens;
  }
  SampledTokens sampled;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const StepPlanEntry& entry = step.plan.entries[i];
    const Row& row = step.rows[i];
    const int64_t end = entry.first_index + entry.num_tokens;
    const CacheWindow window = WindowOf(*row.spec);
    const int64_t num_shifts = window.NumShifts(entry.first_index);
    // The tokens window.sinks to left - 1 have left the window.
    const int64_t left = window.sinks + num_shifts * window.drop;
    uint64_t hash = RootHash(*row.spec);
    std::vector<uint64_t> contexts;  // the hash of the tokens up to each of the entry's own
    for (int64_t j = 0; j < end; ++j) {
      hash = Mix(hash, tokens[i][j]);
      if (j >= entry.first_index) contexts.push_back(hash);
      // The reads of an aborted sequence are not checked: its result is discarded, and the step
      // before may have failed.
      if (entry.sequence->finish_reason == FinishReason::kAbort) continue;
      if (j >= window.sinks && j < left) continue;
      const int64_t p = j < window.sinks ? j : j - num_shifts * window.drop;
      uint64_t want = hash;
      for (int64_t k = window.NumShifts(j); j >= window.sinks && k < num_shifts; ++k) {
        want = Mix(want, window.drop);
      }
      for (size_t group = 0; group < kv_.size(); ++group) {
        if (p < FirstRead(group, entry.first_position)) continue;
        const int32_t block = row.tables[group][p / size];
        QUIRE_CHECK((block >= 0 && kv_[group][int64_t{block} * size + p % size] == want))
            << "sequence " << row.id << " reads what is not its own at position " << p << ", token "
            << j << " of " << end << ", KV group " << group;
      }
    }
    if (!row.spec->continuations.empty()) {
      if (entry.num_samples == 0) Score(entry, row, 0);
      for (int32_t k = 0; k < entry.num_samples; ++k) {
        sampled.tokens.push_back(Score(entry, row, k));
      }
      continue;
    }
    if (row.spec->beam_width > 0) {
      DrawBeam(entry, row, sampled);
      continue;
    }
    if (entry.num_drafts > 0) {
      Verify(step.plan, entry, row, contexts, sampled);
      continue;
    }
    const auto num_generated = static_cast<int64_t>(tokens[i].size() - row.spec->prompt.size());
    for (int32_t k = 0; k < entry.num_samples; ++k) {
      QUIRE_CHECK(end == static_cast<int64_t>(tokens[i].size())) << "sampled in mid-sequence";
      sampled.tokens.push_back(Draw(*row.spec, row.sample_index + k, hash, num_generated));
    }
  }
  return sampled;
}

void Simulation::Note(std::vector<FinishedSequence> finished) {
  for (const FinishedSequence& end : finished) {
    const Sequence& sequence = *end.sequence;
    for (int32_t k = 0; k < std::max(1, SpecOf(sequence).beam_width); ++k) {
      const SequenceId id = sequence.id + k;
      QUIRE_CHECK(!blocks_.Holds(id)) << "sequence " << id << " still holds blocks";
    }
    QUIRE_CHECK((end.cause == EndCause::kFinished) ==
                (sequence.finish_reason != FinishReason::kAbort));
    QUIRE_CHECK(ended_.emplace(sequence.id, Ended{sequence, end.cause}).second) << "ended twice";
  }
}

void Simulation::CheckIdleIsEmpty() const {
  scheduler_.CheckInvariants();  // also checks that only cached blocks keep roots
  const SchedulerStats scheduler = scheduler_.stats();
  QUIRE_CHECK(scheduler.num_waiting + scheduler.num_running + scheduler.num_tenants == 0);
  QUIRE_CHECK(blocks_.stats().num_held == 0);
}

void Simulation::Run(int max_steps) {
  for (int i = 0; i < max_steps; ++i) {
    if (!Step()) {
      QUIRE_CHECK(!scheduler_.HasWork()) << "stuck";
      CheckIdleIsEmpty();
      return;
    }
  }
  QUIRE_CHECK(false) << "still running after " << max_steps << " steps";
}

}  // namespace quire::engine
