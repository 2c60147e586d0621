#include "tools/perplexity.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "engine/batch/lone_input.h"
#include "kernels/sampling/logprobs.h"

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

// Sets losses[i] to the negative log-likelihood of targets[i], which row i of `logits` predicts.
void Losses(kernels::Backend& backend, const TensorView& logits, std::span<const int32_t> targets,
            std::span<double> losses) {
  backend.RunOnHost(std::ssize(targets), [&](int64_t i) {
    const std::span<const float> row(logits.data<const float>() + i * logits.dim(1),
                                     static_cast<size_t>(logits.dim(1)));
    losses[i] =
        -static_cast<double>(kernels::sampling::ComputeLogprobs(row, targets[i], 0).chosen.logprob);
  });
}

// Waits for the logits, and copies them to `memory` if the host cannot access them. Returns the
// logits in memory of the host.
absl::StatusOr<TensorView> OnHost(kernels::Backend& backend, const TensorView& logits,
                                  std::vector<float>& memory) {
  if (backend.info().host_memory) {
    RETURN_IF_ERROR(backend.Synchronize());
    return logits;
  }
  memory.resize(static_cast<size_t>(logits.num_elements()));
  RETURN_IF_ERROR(backend.CopyToHost(memory.data(), logits.raw(), logits.num_bytes()));
  RETURN_IF_ERROR(backend.Synchronize());
  return TensorView(memory.data(), logits.dtype(), {logits.dim(0), logits.dim(1)});
}

// Feeds one window, without its last token, to the model. Adds to `sums` the losses of the tokens
// from window[first_scored] on.
absl::Status ScoreWindow(engine::EngineParts& parts, std::span<const int32_t> window,
                         int64_t first_scored, Sums& sums) {
  const int64_t fed = std::ssize(window) - 1;  // the last token predicts nothing, so it is not fed
  const int64_t first_row = first_scored - 1;
  std::vector<double> losses;
  std::vector<float> memory;
  for (int64_t begin = 0; begin < fed;) {
    const bool scored = begin >= first_row;
    const int64_t limit = scored ? std::min(parts.limits.max_tokens, parts.limits.max_logit_rows)
                                 : parts.limits.max_tokens;
    const int64_t count = std::min(limit, (scored ? fed : first_row) - begin);
    ASSIGN_OR_RETURN(TensorView logits,
                     parts.model->Forward(engine::MakeLoneInput(window.subspan(begin, count), begin,
                                                                scored ? count : 0, parts.cache),
                                          parts.cache));
    ASSIGN_OR_RETURN(logits, OnHost(*parts.backend, logits, memory));
    if (scored) {
      losses.resize(count);
      Losses(*parts.backend, logits, window.subspan(begin + 1, count), losses);
      for (const double loss : losses) sums.Add(loss);
    }
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
  Sums sums;
  for (size_t i = 0; i < windows.size(); ++i) {
    const TextWindow& window = windows[i];
    std::vector<int32_t> fed(tokens.begin() + window.begin, tokens.begin() + window.end);
    if (bos_id >= 0) fed[0] = bos_id;
    RETURN_IF_ERROR(ScoreWindow(parts, fed, window.first_scored - window.begin, sums));
    on_window(sums.Result(static_cast<int64_t>(i) + 1));
  }
  return sums.Result(std::ssize(windows));
}

}  // namespace quire::tools
