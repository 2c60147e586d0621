// The functions of StepLoop for requests that come in, until the scheduler has them.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

#include "base/math.h"
#include "engine/output/replay.h"
#include "engine/request/retry_after.h"
#include "engine/step/step_loop.h"

namespace quire::engine {

void StepLoop::Take(AdmittedRequest admitted, absl::Time now) {
  std::shared_ptr<const DiskChain> on_disk = std::move(admitted.on_disk);
  if (on_disk != nullptr && !CanBeRead(*on_disk, *admitted.request)) on_disk = nullptr;
  const absl::Status status = CheckDeadline(*admitted.request, on_disk.get(), now);
  if (!status.ok()) return Refuse(std::move(admitted), status, now);
  LiveRequest& live = live_.Add(std::move(admitted));
  const std::shared_ptr<Request> request = live.request;
  output_.Add(live.first_id, request);
  if (!WaitsForDisk(live, std::move(on_disk), now)) Schedule(live);
  live_.NoteAdmitted(live);
  Emit(now);
  if (live.num_left == 0) return FinishRequest(live, now);  // each sample had ended
  // A notice that came before the request was in live_ is lost, so the flag of the request is read
  // here.
  if (request->cancelled.load(std::memory_order_acquire)) Reconsider(live, now);
}

// The times that are compared are cautious, and leave out what waits, which may be passed or be
// cancelled. So nearly every request that is refused would have missed its deadline.
absl::Status StepLoop::CheckDeadline(const Request& request, const DiskChain* on_disk,
                                     absl::Time now) {
  constexpr double kCertain = 0.8;  // the part of the estimate that is certain enough
  if (request.deadline == absl::InfiniteFuture()) return absl::OkStatus();
  const absl::Duration left = request.deadline - now;
  // A step with drafts yields several tokens.
  const int64_t tokens_per_step = 1 + parts_.limits.max_draft_tokens;
  const int64_t steps =
      request.is_scoring() || request.is_resumed()
          ? 0
          : base::CeilDiv(std::max<int64_t>(request.params.stop.min_tokens, 1), tokens_per_step);
  const int64_t before = scheduler_.NumPromptTokensLeft();
  // Most requests have time for the whole prompt, so that nothing need be looked up in the cache.
  const absl::Duration most = pacer_.LeastTime(before + std::ssize(request.prompt_ids), steps);
  if (most > absl::ZeroDuration() && kCertain * most <= left) return absl::OkStatus();
  const int64_t own = scheduler_.NumUncached(request);
  const DiskFetches::Gain gain = GainFromDisk(request, on_disk, now);
  const auto least = [&](int64_t first) {
    const absl::Duration computed = pacer_.LeastTime(first + own, steps);
    if (gain.num_tokens == 0) return computed;
    // The `first` tokens, of prompts before it, are computed while it waits for the disk.
    const int64_t rest = std::max<int64_t>(own - gain.num_tokens, 0);
    return std::min(computed, std::max(gain.time + pacer_.LeastTime(rest, steps),
                                       pacer_.LeastTime(first + rest, steps)));
  };
  const absl::Duration alone = least(0);
  const auto shown = [](absl::Duration time) {
    return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1)));
  };
  if (kCertain * alone > left) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "the deadline is in %s, and the request takes %s at least: allow more time, or send a "
        "shorter prompt",
        shown(left), shown(alone)));
  }
  const absl::Duration late = kCertain * least(before) - left;
  if (late <= absl::ZeroDuration()) return absl::OkStatus();
  return WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrFormat(
          "the deadline is in %s, and the prompts that are computed before this one take longer: "
          "try later, or on another server",
          shown(left))),
      late);
}

void StepLoop::Refuse(AdmittedRequest admitted, const absl::Status& status, absl::Time now) {
  const std::shared_ptr<Request> request = admitted.request;
  metrics_.requests_rejected.Add(1);
  metrics_.deadlines_refused.Add(1);
  admitted.ticket.Release();
  admitted.charge.Settle(0);
  running_.Erase(*request);
  request->sink->Finish(status, {.timings = {.queue = now - request->arrival}});
}

bool StepLoop::CanBeRead(const DiskChain& on_disk, const Request& request) const {
  const auto& samples = request.replayed;
  const bool have_ended = std::ranges::all_of(
      samples, [](const std::shared_ptr<ReplayedSample>& sample) { return sample->has_ended(); });
  return on_disk.epoch == scheduler_.cache_epoch() && (samples.empty() || !have_ended);
}

DiskFetches::Gain StepLoop::GainFromDisk(const Request& request, const DiskChain* on_disk,
                                         absl::Time now) {
  if (!fetches_) return {};
  if (request.prefix != nullptr) return fetches_->GainOfPrefix(request);
  return on_disk == nullptr ? DiskFetches::Gain()
                            : fetches_->GainOf(request, RootKeyOf(request), *on_disk, now);
}

bool StepLoop::WaitsForDisk(const LiveRequest& live, std::shared_ptr<const DiskChain> on_disk,
                            absl::Time now) {
  if (!fetches_) return false;
  if (live.request->prefix != nullptr) return fetches_->TryWaitForPrefix(live.request);
  return on_disk != nullptr &&
         fetches_->TryWait(live.request, RootKeyOf(*live.request), std::move(on_disk), now);
}

std::string StepLoop::RootKeyOf(const Request& request) const {
  return engine::RootKeyOf(parts_.model_info.name, scheduler_.cache_epoch(), request);
}

void StepLoop::TakeFromDisk(absl::Time now) {
  for (const DiskFetches::Released& released : fetches_->Advance(now)) {
    LiveRequest& live = *live_.Find(*released.request);
    live.disk_begin = released.begin;
    live.disk_end = released.end;
    Schedule(live);
    if (live.request->cancelled.load(std::memory_order_acquire)) Reconsider(live, now);
  }
}

void StepLoop::Schedule(const LiveRequest& live) {
  const Request& request = *live.request;
  const auto new_sequence = [&](int32_t index) {
    Sequence sequence;
    sequence.id = live.first_id + index;
    sequence.sample_index = index;
    sequence.request = live.request;
    sequence.tokens = request.prompt_ids;
    return sequence;
  };
  if (!request.is_resumed()) return scheduler_.Add(new_sequence(0));
  std::vector<Sequence> samples;
  for (int32_t k = 0; k < request.params.sampling.num_samples(); ++k) {
    if (request.replayed[k]->has_ended()) continue;
    const TokenIds& given = request.params.resume->token_ids[k];
    std::vector<int32_t>& tokens = samples.emplace_back(new_sequence(k)).tokens;
    tokens.insert(tokens.end(), given.begin(), given.end());
  }
  if (!samples.empty()) scheduler_.AddResumed(std::move(samples));
}

}  // namespace quire::engine
