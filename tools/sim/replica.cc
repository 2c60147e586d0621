#include "tools/sim/replica.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/check.h"

namespace quire::tools {
namespace {

constexpr double kIdle = std::numeric_limits<double>::infinity();

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

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
                  .max_logit_rows = config.max_num_batched_tokens,
                  .stalled_stream_timeout = absl::Seconds(30),
                  .headroom_blocks = config.headroom_blocks,
                  .victim = config.victim},
                 blocks_),
      sink_(std::make_shared<Sink>()),
      step_end_(kIdle) {}

bool Replica::Fits(const TraceRequest& request) const {
  return blocks_.FitsEmpty(request.prompt_tokens, request.output_tokens);
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
  const engine::SequenceId id = next_id_++;
  const int64_t num_tokens = request.prompt_tokens + request.output_tokens;
  live_[id] = {
      .served = {.arrival = now, .prompt_tokens = request.prompt_tokens, .tenant = request.tenant},
      .num_tokens = num_tokens};
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

void Replica::EndStep() {
  const double now = step_end_;
  sampled_.tokens.clear();
  int32_t decodes = 0;
  for (const engine::StepPlanEntry& entry : plan_.entries) {
    const engine::Sequence& sequence = *entry.sequence;
    decodes += entry.num_tokens == 1 ? 1 : 0;
    if (entry.num_samples == 0) continue;
    Live& live = live_.at(sequence.id);
    Served& served = live.served;
    const int64_t num_generated = sequence.num_generated() + 1;
    if (num_generated == 1) {
      served.first_token = now;
      served.cached_tokens = sequence.num_cached;
    }
    const bool ends = num_generated == sequence.request->max_tokens;
    // No prompt of a trace has negative ids, so an answer is never found in a prompt.
    sampled_.tokens.push_back(
        {.id = static_cast<int32_t>(-1 - sequence.id % (1 << 30)),
         .finish_reason = ends ? engine::FinishReason::kLength : engine::FinishReason::kNone});
    if (!ends) continue;
    served.last_token = now;
    served.output_tokens = num_generated;
    served_(served);
    num_tokens_left_ -= live.num_tokens;
    live_.erase(sequence.id);
  }
  busy_seconds_ += now - step_begin_;
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
