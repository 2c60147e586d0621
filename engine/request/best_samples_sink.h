#pragma once

// Chooses the best samples of a request (SamplingParams::best_of).

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "base/mutex.h"
#include "engine/request/delta_buffer.h"
#include "engine/request/token_sink.h"

namespace quire::engine {

// Keeps all samples until the request has ended. Then passes on the `num_best` with the highest
// scores, best first, as samples 0, 1, ...; of equal ones, the sample with the lower index. The
// score of a sample is the mean log-probability of its tokens, so each token must come with its
// log-probability. Whatever sample is left out, the log-probabilities of the prompt are passed on.
// After an error, passes on the error alone.
//
// Thread-safe, because a third thread may call Finish when a device hangs.
class BestSamplesSink final : public TokenSink {
 public:
  // If not `wants_logprobs`, `sink` gets no log-probabilities of generated tokens.
  BestSamplesSink(std::shared_ptr<TokenSink> sink, int32_t num_best, bool wants_logprobs)
      : sink_(std::move(sink)), num_best_(num_best), wants_logprobs_(wants_logprobs) {}

  bool CanTake(int32_t) const override { return true; }
  void Put(TokenDelta delta) override;
  void Finish(const absl::Status& status, const RequestSummary& summary) override;

 private:
  struct Sum {
    double logprobs = 0.0;
    int64_t num_tokens = 0;
  };

  const std::shared_ptr<TokenSink> sink_;
  const int32_t num_best_;
  const bool wants_logprobs_;

  base::Mutex mu_;
  DeltaBuffer samples_ ABSL_GUARDED_BY(mu_);
  std::map<int32_t, Sum> sums_ ABSL_GUARDED_BY(mu_);  // by index
};

}  // namespace quire::engine
