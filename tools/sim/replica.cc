#include "tools/sim/replica.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/check.h"

namespace quire::tools {
namespace {

constexpr double kIdle = std::numeric_limits<double>::infinity();

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

// Returns the token of which an answer consists. No prompt of a trace has negative ids, so an
// answer is never found in a prompt.
int32_t AnswerToken(engine::SequenceId id) { return static_cast<int32_t>(-1 - id % (1 << 30)); }

// Adds the real time of a scope to `sum`.
class Stopwatch {
 public:
  explicit Stopwatch(absl::Duration& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += absl::Nanoseconds(absl::GetCurrentTimeNanos() - begin_); }

 private:
  absl::Duration& sum_;
  const int64_t begin_ = absl::GetCurrentTimeNanos();
};

}  // namespace

// A client that reads at once.
class Replica::Sink final : public engine::TokenSink {
 public:
  bool CanTake(int32_t) const override { return true; }
  void Put(engine::TokenDelta) override {}
  void Finish(const absl::Status&, const engine::RequestSummary&) override {}
};

Replica::Replica(const ReplicaConfig& config, std::function<void(const Served&)> served)
    : config_(config),
      served_(std::move(served)),
      pacer_(config.max_step_time, config.max_num_batched_tokens),
      blocks_({.num_blocks = static_cast<int32_t>(config.cache_tokens / config.block_size),
               .block_size = config.block_size,
               .windows = {},
               .max_step_tokens = 0,
               .pipeline_depth = 0,
               .eviction = config.eviction}),
      scheduler_({.model = "sim",
                  .max_num_seqs = config.max_num_seqs,
                  .max_num_batched_tokens = config.max_num_batched_tokens,
                  .prefill_limit = [this](int32_t decodes) { return pacer_.limit(decodes); },
                  .max_logit_rows = config.max_logit_rows,
                  .stalled_stream_timeout = absl::Seconds(30),
                  .headroom_blocks = config.headroom_blocks,
                  .victim = config.victim},
                 blocks_),
      sink_(std::make_shared<Sink>()),
      step_end_(kIdle) {}

bool Replica::Fits(const TraceRequest& request) const {
  return blocks_.FitsEmpty(request.prompt_tokens, request.output_tokens) &&
         request.num_scored <= config_.max_num_seqs;
}

void Replica::Add(const TraceRequest& request, int32_t block_tokens, double now) {
  QUIRE_CHECK(Fits(request)) << request.prompt_tokens << " + " << request.output_tokens
                             << " tokens";
  auto made = std::make_shared<engine::Request>();
  made->prompt_ids = MakeTokens(request, block_tokens);
  made->max_tokens = static_cast<int32_t>(request.output_tokens);
  made->arrival = At(now);
  made->sink = sink_;
  made->params.sched.tenant = absl::StrCat(request.tenant);
  const engine::SequenceId id = next_id_;
  const int32_t num_samples = std::max(1, request.num_scored);
  next_id_ += num_samples;
  made->params.sampling.n = num_samples;
  for (int32_t k = 0; k < request.num_scored; ++k) {
    made->continuation_ids.emplace_back(request.output_tokens, AnswerToken(id + k));
  }
  const int64_t num_tokens = request.prompt_tokens + num_samples * request.output_tokens;
  live_[id] = {
      .served = {.arrival = now, .prompt_tokens = request.prompt_tokens, .tenant = request.tenant},
      .num_tokens = num_tokens,
      .num_left = num_samples,
      .step = num_ended_steps_};
  num_tokens_left_ += num_tokens;
  engine::Sequence sequence;
  sequence.id = id;
  sequence.tokens = made->prompt_ids;
  sequence.request = std::move(made);
  {
    const Stopwatch watch(scheduler_time_);
    scheduler_.Add(std::move(sequence));
  }
  if (step_end_ == kIdle) BeginStep(now);
}

void Replica::BeginStep(double now) {
  const Stopwatch watch(scheduler_time_);
  plan_ = scheduler_.Schedule(At(now));
  step_begin_ = now;
  step_end_ = plan_.empty() ? kIdle : now + config_.cost.Seconds(WorkOf(plan_));
}

void Replica::TakeToken(engine::SequenceId first, bool ends, double now) {
  Live& live = live_.at(first);
  Served& served = live.served;
  const int64_t num_steps = num_ended_steps_ - live.step;
  live.step = num_ended_steps_;
  if (served.output_tokens++ == 0) {
    served.first_token = now;
    served.ttft_steps = num_steps;
  } else {
    served.longest_gap = std::max(served.longest_gap, now - served.last_token);
    served.longest_gap_steps = std::max(served.longest_gap_steps, num_steps);
  }
  served.last_token = now;
  if (!ends || --live.num_left > 0) return;
  served_(served);
  num_tokens_left_ -= live.num_tokens;
  live_.erase(first);
}

void Replica::EndStep() {
  const double now = step_end_;
  ++num_ended_steps_;
  sampled_.tokens.clear();
  int32_t decodes = 0;
  for (const engine::StepPlanEntry& entry : plan_.entries) {
    const engine::Sequence& sequence = *entry.sequence;
    const engine::Request& request = *sequence.request;
    const engine::SequenceId first = sequence.id - sequence.sample_index;
    decodes += entry.num_tokens == 1 ? 1 : 0;
    for (int32_t k = 0; k < entry.num_samples; ++k) {
      if (sequence.num_generated() == 0) live_.at(first).served.cached_tokens = sequence.num_cached;
      // The first draw of a continuation opens it, and the next one ends it.
      const bool ends = request.is_scoring()
                            ? sequence.num_generated() > 0 || request.max_tokens == 1
                            : sequence.num_generated() + 1 == request.max_tokens;
      sampled_.tokens.push_back(
          {.id = AnswerToken(sequence.id + k),
           .finish_reason = ends ? engine::FinishReason::kLength : engine::FinishReason::kNone});
      TakeToken(first, ends, now);
    }
  }
  busy_seconds_ += now - step_begin_;
  longest_step_ = std::max(longest_step_, now - step_begin_);
  pacer_.NoteStep(static_cast<int32_t>(plan_.num_tokens) - decodes, decodes,
                  absl::Seconds(now - step_begin_));
  {
    const Stopwatch watch(scheduler_time_);
    scheduler_.Complete(plan_, sampled_);
    scheduler_.Recycle(std::move(plan_));
  }
  BeginStep(now);
}

}  // namespace quire::tools
