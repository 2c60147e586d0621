#pragma once

// The counters of the engine. The step thread writes them, except that any thread counts
// rejections. Any thread reads them.

#include <array>

#include "absl/status/status.h"

#include "base/heartbeat.h"
#include "base/metrics.h"
#include "engine/request/engine_info.h"

namespace quire::engine {

struct EngineMetrics {
  base::Counter num_running;
  base::Counter num_preempted;  // preempted sequences that wait
  base::Counter blocks_free, blocks_cached, blocks_held, blocks_pinned, cache_roots;
  base::Counter prefix_hits, prefix_saved_tokens;
  base::Counter kept_requests, kept_sequences, kept_outputs, kept_scores, kept_tenants;
  base::Counter prompt_tokens_computed, prompt_tokens_cached;
  base::Counter generated_tokens, scored_tokens, recomputed_tokens;
  base::Counter drafted_tokens, accepted_tokens, drafts_expected, drafts_price;
  base::Counter block_copies, beam_copies, preemptions, steps, steps_failed;
  base::Counter shared_prefixes, saved_keys;
  std::array<base::Counter, kernels::kNumDeviceCounts> device;  // as Stats::device
  base::Counter requests_rejected, deadlines_refused;
  std::array<base::Counter, 3> followers;  // by FollowEnd
  std::array<base::Counter, 3> resumes;    // by ResumeResult
  std::array<base::Counter, 4> finished_by_reason;
  base::LatencyHistogram ttft, tpot;

  // The step thread's state, for Liveness.
  base::Heartbeat step;                       // busy from a step's start to its end
  base::Counter step_sequences, step_tokens;  // sizes of the present step, once it is planned
  base::Counter failed_steps;                 // steps that failed since the last one that succeeded
  base::Heartbeat since_failure;              // busy since the last failed step
  base::Counter device_lost;                  // 1: no step can succeed any more

  // Counts a request to resume a stream. `status` is what became of it in the frontend.
  void NoteResume(const absl::Status& status) {
    ResumeResult result = ResumeResult::kInvalid;
    if (status.ok()) result = ResumeResult::kResumed;
    if (absl::IsFailedPrecondition(status)) result = ResumeResult::kMismatch;
    resumes[static_cast<size_t>(result)].Add(1);
  }
};

inline HistogramSnapshot Snapshot(const base::LatencyHistogram& histogram) {
  HistogramSnapshot snapshot;
  snapshot.bounds.assign(histogram.kBounds.begin(), histogram.kBounds.end());
  for (size_t i = 0; i <= histogram.kBounds.size(); ++i) {
    snapshot.counts.push_back(histogram.count(i));
  }
  snapshot.sum = histogram.sum();
  return snapshot;
}

}  // namespace quire::engine
