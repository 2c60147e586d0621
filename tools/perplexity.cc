#include "tools/perplexity.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "engine/batch/lone_input.h"
#include "kernels/lone_update.h"

namespace quire::tools {
namespace {

using kernels::TensorView;

// Sums the negative log-likelihoods of the scored tokens, in order.
class Sums {
 public:
  void Add(double loss) {
    sum_ += loss;
    squares_ += loss * loss;
    ++count_;
  }
  Perplexity Result(int64_t num_windows) const {
    const auto count = static_cast<double>(count_);
    const double mean = sum_ / count;
    const double variance = std::max(0.0, squares_ / count - mean * mean);
    const double mean_error = count_ > 1 ? std::sqrt(variance / (count - 1)) : 0.0;
    return {.perplexity = std::exp(mean),
            .error = std::exp(mean) * mean_error,
            .num_scored = count_,
            .num_windows = num_windows};
  }

 private:
  double sum_ = 0.0, squares_ = 0.0;
  int64_t count_ = 0;
};

// Adds the negative log-likelihoods of `targets`. Row i of the logits predicts targets[i].
class Scorer {
 public:
  static absl::StatusOr<Scorer> Create(kernels::Backend& backend, int64_t vocab_size,
                                       int64_t max_rows) {
    Scorer scorer(backend);
    ASSIGN_OR_RETURN(scorer.drawn_, backend.Allocate(SizeOf(kernels::DType::kI32)));
    ASSIGN_OR_RETURN(scorer.sampler_,
                     backend.PrepareSampler({.vocab_size = static_cast<int32_t>(vocab_size),
                                             .max_rows = max_rows,
                                             .max_draws = 1}));
    return scorer;
  }
  absl::Status Add(const TensorView& logits, std::span<const int32_t> targets, Sums& sums) {
    rows_.clear();
    for (const int32_t target : targets) {
      rows_.push_back({.row = std::ssize(rows_), .given = target, .num_top = 0});
    }
    ASSIGN_OR_RETURN(const kernels::TableUpdate update, sampler_->Prepare(rows_));
    ASSIGN_OR_RETURN(const kernels::LoneUpdate sent, EnqueueLoneUpdate(backend_, update));
    RETURN_IF_ERROR(backend_.Sample({.logits = logits,
                                     .rows = rows_,
                                     .drawn = TensorView(drawn_.data(), kernels::DType::kI32, {1}),
                                     .sampler = sampler_.get()}));
    RETURN_IF_ERROR(backend_.Synchronize());
    sampler_->Take(results_);
    for (const absl::StatusOr<kernels::SampledRow>& result : results_) {
      RETURN_IF_ERROR(result.status());
      sums.Add(-static_cast<double>(result->logprobs->chosen.logprob));
    }
    return absl::OkStatus();
  }

 private:
  explicit Scorer(kernels::Backend& backend) : backend_(backend) {}

  kernels::Backend& backend_;
  kernels::DeviceBuffer drawn_;  // no token is drawn, but the op wants the memory
  std::unique_ptr<kernels::PreparedSampler> sampler_;
  std::vector<kernels::SampleRow> rows_;
  std::vector<absl::StatusOr<kernels::SampledRow>> results_;
};

// Feeds one window, without its last token, to the model. Adds to `sums` the losses of the tokens
// from window[first_scored] on.
absl::Status ScoreWindow(engine::EngineParts& parts, std::span<const int32_t> window,
                         int64_t first_scored, Scorer& scorer, Sums& sums) {
  const int64_t fed = std::ssize(window) - 1;  // the last token predicts nothing, so it is not fed
  const int64_t first_row = first_scored - 1;
  for (int64_t begin = 0; begin < fed;) {
    const bool scored = begin >= first_row;
    const int64_t limit = scored ? std::min(parts.limits.max_tokens, parts.limits.max_logit_rows)
                                 : parts.limits.max_tokens;
    const int64_t count = std::min(limit, (scored ? fed : first_row) - begin);
    ASSIGN_OR_RETURN(const TensorView logits,
                     parts.model->Forward(engine::MakeLoneInput(window.subspan(begin, count), begin,
                                                                scored ? count : 0, parts.cache),
                                          parts.cache));
    if (scored) RETURN_IF_ERROR(scorer.Add(logits, window.subspan(begin + 1, count), sums));
    begin += count;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TextWindow>> MakeWindows(int64_t num_tokens,
                                                    const PerplexityOptions& options) {
  const int64_t context = options.context;
  const int64_t needed = options.stride == 0 ? context : 2;
  if (num_tokens < needed) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the text: want at least %d tokens, got %d; give a longer one%s", needed,
                        num_tokens, options.stride == 0 ? ", or a smaller --context" : ""));
  }
  std::vector<TextWindow> windows;
  const auto is_full = [&] {
    return options.max_windows > 0 && std::ssize(windows) == options.max_windows;
  };
  if (options.stride == 0) {
    for (int64_t begin = 0; begin + context <= num_tokens && !is_full(); begin += context) {
      windows.push_back(
          {.begin = begin, .end = begin + context, .first_scored = begin + context / 2 + 1});
    }
    return windows;
  }
  int64_t seen = 1;  // the text's first token is never scored, because no token predicts it
  for (int64_t begin = 0; seen < num_tokens && !is_full(); begin += options.stride) {
    const int64_t end = std::min(begin + context, num_tokens);
    windows.push_back({.begin = begin, .end = end, .first_scored = std::max(seen, begin + 1)});
    seen = end;
  }
  return windows;
}

absl::StatusOr<Perplexity> ComputePerplexity(
    engine::EngineParts& parts, std::span<const int32_t> tokens, const PerplexityOptions& options,
    int32_t bos_id, const std::function<void(const Perplexity& so_far)>& on_window) {
  ASSIGN_OR_RETURN(const std::vector<TextWindow> windows, MakeWindows(std::ssize(tokens), options));
  ASSIGN_OR_RETURN(Scorer scorer, Scorer::Create(*parts.backend, parts.model->config().vocab_size,
                                                 parts.limits.max_logit_rows));
  Sums sums;
  for (size_t i = 0; i < windows.size(); ++i) {
    const TextWindow& window = windows[i];
    std::vector<int32_t> fed(tokens.begin() + window.begin, tokens.begin() + window.end);
    if (bos_id >= 0) fed[0] = bos_id;
    RETURN_IF_ERROR(ScoreWindow(parts, fed, window.first_scored - window.begin, scorer, sums));
    on_window(sums.Result(static_cast<int64_t>(i) + 1));
  }
  return sums.Result(std::ssize(windows));
}

}  // namespace quire::tools
