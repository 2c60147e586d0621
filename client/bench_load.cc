#include "client/bench_load.h"

#include <chrono>
#include <utility>

#include "base/check.h"

namespace quire::client {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);

}  // namespace

// One running request. The callbacks of a request run one at a time, so `record` needs no lock.
struct Load::Live {
  RequestRecord record;
  std::optional<uint32_t> cancel_after_tokens;
};

Load::Load(LoadOptions options, Workload workload, std::vector<Connection*> connections)
    : options_(std::move(options)),
      connections_(std::move(connections)),
      workload_(std::move(workload)),
      start_(std::chrono::steady_clock::now()) {
  QUIRE_CHECK(!connections_.empty());
  QUIRE_CHECK(options_.num_requests.has_value() || options_.duration.has_value());
}

Load::~Load() {
  base::MutexLock lock(mu_);
  QUIRE_CHECK(num_live_ == 0);
}

std::vector<RequestRecord> Load::Run(const std::function<void(const LoadProgress&)>& on_progress) {
  start_ = std::chrono::steady_clock::now();
  while (!options_.num_requests.has_value() || num_sent_ < *options_.num_requests) {
    const PlannedRequest planned = workload_.Next();
    if (!WaitForTurn(planned, on_progress)) break;
    Send(planned);
  }
  while (true) {
    LoadProgress progress{.elapsed = Elapsed(), .num_sent = num_sent_, .num_tokens = num_tokens_};
    {
      base::MutexLock lock(mu_);
      if (num_live_ > 0) changed_.WaitFor(mu_, absl::ToChronoNanoseconds(kProgressInterval));
      progress.num_done = records_.size();
      progress.num_failed = num_failed_;
      if (num_live_ == 0) break;
    }
    on_progress(progress);
  }
  wall_ = Elapsed();
  base::MutexLock lock(mu_);
  return std::move(records_);
}

absl::Duration Load::wall() const { return wall_; }

void Load::Stop() {
  {
    base::MutexLock lock(mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  for (Connection* connection : connections_) connection->CancelAll();
}

absl::Duration Load::Elapsed() const {
  return absl::FromChrono(std::chrono::steady_clock::now() - start_);
}

// Returns true once `planned` may be sent. Returns false when no further request may be sent.
bool Load::WaitForTurn(const PlannedRequest& planned,
                       const std::function<void(const LoadProgress&)>& on_progress) {
  const absl::Duration end = options_.duration.value_or(absl::InfiniteDuration());
  while (true) {
    const absl::Duration now = Elapsed();
    LoadProgress progress{.elapsed = now, .num_sent = num_sent_, .num_tokens = num_tokens_};
    {
      base::MutexLock lock(mu_);
      if (stopped_ || now >= end) return false;
      if (options_.open_loop ? now >= planned.arrival : num_live_ < options_.concurrency)
        return true;
      progress.num_done = records_.size();
      progress.num_failed = num_failed_;
      if (now < next_progress_) {
        absl::Duration until = std::min(next_progress_, end);
        if (options_.open_loop) until = std::min(until, planned.arrival);
        changed_.WaitFor(mu_, absl::ToChronoNanoseconds(until - now));
        continue;
      }
    }
    on_progress(progress);
    next_progress_ = now + kProgressInterval;
  }
}

void Load::Send(const PlannedRequest& planned) {
  v1::GenerateRequest request = options_.request;
  if (planned.token_ids.empty()) {
    request.set_text(planned.text);
  } else {
    request.mutable_token_ids()->mutable_ids()->Add(planned.token_ids.begin(),
                                                    planned.token_ids.end());
  }
  request.mutable_stop()->set_max_tokens(planned.max_tokens);
  request.mutable_output()->set_token_ids(true);
  if (options_.first_sampling_seed.has_value()) {
    request.mutable_sampling()->set_seed(*options_.first_sampling_seed + num_sent_);
  }
  const auto live = std::make_shared<Live>();
  live->record.arrival = options_.open_loop ? planned.arrival : Elapsed();
  live->cancel_after_tokens = planned.cancel_after_tokens;
  {
    base::MutexLock lock(mu_);
    ++num_live_;
  }
  Connection& connection = *connections_[num_sent_ % connections_.size()];
  ++num_sent_;
  const bool cancel_now = planned.cancel_after_tokens == 0;
  if (cancel_now) live->record.dropped = true;
  const std::shared_ptr<StreamCall> call = connection.StartStream(
      request,
      [this, live](StreamCall& stream, const v1::GenerateStreamResponse& message) {
        OnMessage(*live, stream, message);
      },
      [this, live](const absl::Status& status) { OnDone(*live, status); });
  if (cancel_now) call->Cancel();
}

void Load::OnMessage(Live& live, StreamCall& call, const v1::GenerateStreamResponse& message) {
  RequestRecord& record = live.record;
  if (message.has_usage()) {
    record.prompt_tokens = message.usage().prompt_tokens();
    record.cached_tokens = message.usage().cached_tokens();
  }
  const uint32_t num_tokens = static_cast<uint32_t>(message.token_ids_size());
  if (num_tokens == 0) return;
  const absl::Duration now = Elapsed();
  if (record.num_tokens == 0) {
    record.first_token = now;
  } else {
    record.gaps.push_back(static_cast<float>(absl::ToDoubleSeconds(now - record.last_token)));
  }
  record.last_token = now;
  record.num_tokens += num_tokens;
  num_tokens_.fetch_add(num_tokens, std::memory_order_relaxed);
  if (live.cancel_after_tokens.has_value() && record.num_tokens >= *live.cancel_after_tokens &&
      !record.dropped) {
    record.dropped = true;
    call.Cancel();
  }
}

void Load::OnDone(Live& live, const absl::Status& status) {
  live.record.end = Elapsed();
  live.record.code = status.code();
  // A code other than CANCELLED means that the server refused the request, or that the request
  // ended before the load's cancel took effect. In both cases the load did not drop the request.
  if (status.code() != absl::StatusCode::kCancelled) live.record.dropped = false;
  base::MutexLock lock(mu_);
  if (!status.ok() && !live.record.dropped) ++num_failed_;
  records_.push_back(std::move(live.record));
  --num_live_;
  changed_.NotifyAll();
}

}  // namespace quire::client
