#pragma once

// What the engine counts. Written by the step thread (rejections by any), read by anyone.

#include <array>

#include "base/metrics.h"
#include "engine/engine.h"

namespace quire::engine {

struct EngineMetrics {
  base::Counter num_running;
  base::Counter num_preempted;  // sequences that wait to be brought back
  base::Counter blocks_free, blocks_cached, blocks_held, cache_roots;
  base::Counter kept_requests, kept_sequences, kept_outputs, kept_scores, kept_tenants;
  base::Counter prompt_tokens_computed, prompt_tokens_cached;
  base::Counter generated_tokens, scored_tokens, recomputed_tokens;
  base::Counter block_copies, preemptions, steps;
  base::Counter requests_rejected;
  std::array<base::Counter, 4> finished_by_reason;
  base::LatencyHistogram ttft, tpot;
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
