#include "engine/step/live_requests.h"

#include <algorithm>
#include <utility>

#include "engine/output/replay.h"
#include "engine/request/answer_size.h"

namespace quire::engine {

LiveRequest& LiveRequests::Add(AdmittedRequest admitted) {
  LiveRequest& live = live_[admitted.request.get()];
  live.request = std::move(admitted.request);
  live.ticket = std::move(admitted.ticket);
  live.charge = std::move(admitted.charge);
  live.lease = std::move(admitted.lease);
  ++num_unstarted_;
  live.first_id = next_sequence_id_;
  live.num_left = live.request->params.sampling.num_samples();
  live.summary.usage.prompt_tokens = static_cast<int64_t>(live.request->prompt_ids.size());
  next_sequence_id_ += live.request->params.sampling.num_sequences();
  return live;
}

void LiveRequests::NoteAdmitted(LiveRequest& live) {
  const Request& request = *live.request;
  if (request.params.output.resumable) Queue(live, {.seed = request.seed});
  if (!request.is_resumed()) return;
  live.forked = true;
  for (size_t k = 0; k < request.replayed.size(); ++k) {
    ReplayedSample& sample = *request.replayed[k];
    const int64_t num_given = std::ssize(request.params.resume->token_ids[k]);
    live.summary.usage.completion_tokens += num_given;
    live.summary.usage.resumed_tokens += num_given;
    live.num_left -= sample.has_ended() ? 1 : 0;
    if (sample.has_ended() || !sample.delta.text.empty()) Queue(live, std::move(sample.delta));
  }
}

LiveRequest* LiveRequests::Find(const Request& request) {
  const auto it = live_.find(&request);
  return it == live_.end() ? nullptr : &it->second;
}

void LiveRequests::NoteScheduled(const Sequence& sequence, absl::Time now) {
  LiveRequest& live = Of(sequence);
  if (live.first_scheduled != absl::InfinitePast()) return;
  live.first_scheduled = now;
  --num_unstarted_;
  live.ticket.Release();
  live.summary.usage.cached_tokens = sequence.num_cached;
  live.summary.usage.prefix_tokens = sequence.num_prefix;
  // They may have been evicted since.
  live.summary.usage.disk_tokens =
      std::max<int64_t>(0, std::min(sequence.num_cached, live.disk_end) - live.disk_begin);
  if (sequence.num_prefix > 0) {
    PrefixContent::Use& use = live.request->prefix->use;
    use.last_hit_ns.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
    use.hits.fetch_add(1, std::memory_order_relaxed);
    use.saved_tokens.fetch_add(static_cast<uint64_t>(sequence.num_prefix),
                               std::memory_order_relaxed);
    metrics_.prefix_hits.Add(1);
    metrics_.prefix_saved_tokens.Add(sequence.num_prefix);
  }
  live.summary.timings.queue = now - live.request->arrival;
}

void LiveRequests::NoteTokens(LiveRequest& live, int64_t num_tokens, absl::Time now) {
  live.summary.usage.completion_tokens += num_tokens;
  live.last_token = now;
  if (live.first_token != absl::InfinitePast()) return;
  live.first_token = now;
  live.summary.timings.prefill = now - live.first_scheduled;
  live.summary.timings.ttft = now - live.request->arrival;
}

void LiveRequests::Queue(LiveRequest& live, TokenDelta delta) {
  emissions_.push_back({.live = &live, .delta = std::move(delta)});
}

std::vector<LiveRequest*> LiveRequests::Emit() {
  std::vector<LiveRequest*> too_large;
  for (Emission& emission : emissions_) {
    const Request& request = *emission.live->request;
    if (request.params.output.usage_per_chunk) emission.delta.usage = emission.live->summary.usage;
    if (!Put(*emission.live, std::move(emission.delta))) too_large.push_back(emission.live);
  }
  emissions_.clear();
  return too_large;
}

bool LiveRequests::Put(LiveRequest& live, TokenDelta delta) {
  const Request& request = *live.request;
  if (const int64_t most = request.params.max_answer_bytes; most > 0) {
    live.answer_bytes += AnswerBytes(delta, request.params, tokenizer_);
    if (live.answer_bytes > most) {
      if (live.status.ok()) live.status = AnswerTooLarge(request.params);
      return false;
    }
  }
  if (!std::exchange(live.has_begun, true) && !request.params.answers_at_once) {
    ResolvedParams resolved{.max_tokens = request.max_tokens, .sampling = request.params.sampling};
    resolved.sampling.seed = request.seed;
    resolved.sampling.logit_bias.clear();
    resolved.sampling.allowed_token_ids.clear();
    delta.resolved = std::make_shared<const ResolvedParams>(std::move(resolved));
  }
  request.sink->Put(std::move(delta));
  return true;
}

LiveRequest LiveRequests::Take(LiveRequest& live, absl::Time now) {
  RequestSummary& summary = live.summary;
  if (live.first_scheduled == absl::InfinitePast()) {
    --num_unstarted_;
    summary.timings.queue = now - live.request->arrival;
  }
  const int64_t num_new = summary.usage.completion_tokens - summary.usage.resumed_tokens;
  const int64_t tokens_a_sample = num_new / live.request->params.sampling.num_sequences();
  if (live.first_token != absl::InfinitePast()) {
    summary.timings.decode = live.last_token - live.first_token;
    if (tokens_a_sample > 1 && !live.request->is_scoring()) {
      metrics_.tpot.Observe(absl::ToDoubleSeconds(summary.timings.decode) /
                            static_cast<double>(tokens_a_sample - 1));
    }
  }
  live.ticket.Release();
  const bool has_run = live.first_scheduled != absl::InfinitePast();
  live.charge.Settle(has_run ? summary.usage.prompt_tokens - summary.usage.cached_tokens +
                                   summary.usage.completion_tokens
                             : 0);
  LiveRequest ended = std::move(live);
  live_.erase(ended.request.get());
  return ended;
}

}  // namespace quire::engine
