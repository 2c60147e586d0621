#include "engine/request/best_samples_sink.h"

#include <algorithm>
#include <vector>

namespace quire::engine {

void BestSamplesSink::Put(TokenDelta delta) {
  base::MutexLock lock(mu_);
  Sum& sum = sums_[delta.index];
  for (const PositionLogprobs& position : delta.logprobs) {
    sum.logprobs += static_cast<double>(position.chosen.logprob);
    ++sum.num_tokens;
  }
  if (!wants_logprobs_) delta.logprobs.clear();
  samples_.Add(std::move(delta));
}

void BestSamplesSink::Finish(const absl::Status& status, const RequestSummary& summary) {
  std::vector<TokenDelta> samples;
  {
    base::MutexLock lock(mu_);
    samples = samples_.Take();
    for (TokenDelta& sample : samples) {
      const Sum& sum = sums_[sample.index];
      sample.score = sum.num_tokens > 0 ? sum.logprobs / static_cast<double>(sum.num_tokens) : 0.0;
    }
  }
  if (status.ok()) {
    std::vector<PositionLogprobs> prompt_logprobs;  // one sample has them
    for (TokenDelta& sample : samples) {
      if (!sample.prompt_logprobs.empty()) std::swap(prompt_logprobs, sample.prompt_logprobs);
    }
    std::ranges::sort(samples, {},
                      [](const TokenDelta& s) { return std::pair(-*s.score, s.index); });
    const auto num_kept = std::min<size_t>(samples.size(), static_cast<size_t>(num_best_));
    for (size_t rank = 0; rank < num_kept; ++rank) {
      TokenDelta& sample = samples[rank];
      sample.index = static_cast<int32_t>(rank);
      if (rank == 0) sample.prompt_logprobs = std::move(prompt_logprobs);
      sink_->Put(std::move(sample));
    }
  }
  sink_->Finish(status, summary);
}

}  // namespace quire::engine
