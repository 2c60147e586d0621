#pragma once

// How well a model predicts a text: e to the mean negative log-likelihood of its tokens.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/engine_parts.h"

namespace quire::tools {

// Which tokens are scored, each after how much of the text.
//
//   stride 0   llama.cpp's rule (llama-perplexity): windows of `context` tokens one after another,
//              what is left over dropped; the first token of each becomes BOS where the tokenizer
//              adds one to a text; scored are the tokens behind the window's first half.
//   stride s   Hugging Face's rule ("Perplexity of fixed-length models"): windows of `context`
//              tokens that begin s tokens apart, to the text's end; scored is in each what no
//              window before it held, but never its first token.
struct PerplexityOptions {
  int64_t context = 512;    // tokens, at least 4
  int64_t stride = 0;       // at most context
  int64_t max_windows = 0;  // the first so many; 0: all
};

// Tokens [begin, end) of the text are fed, [first_scored, end) are scored.
struct TextWindow {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first_scored = 0;

  bool operator==(const TextWindow&) const = default;
};

// InvalidArgument when the text has not two tokens to a window.
absl::StatusOr<std::vector<TextWindow>> MakeWindows(int64_t num_tokens,
                                                    const PerplexityOptions& options);

struct Perplexity {
  double perplexity = 0.0;
  double error = 0.0;  // standard error, taking the tokens as independent, as llama.cpp does
  int64_t num_scored = 0;
  int64_t num_windows = 0;
};

// Of `tokens`, on `parts`, whose limits allow options.context; its cache is overwritten from block
// 0. A bos_id that is not negative stands for each window's first token. The same bits whatever
// limits.max_tokens is. `on_window` hears what has been computed after each window.
absl::StatusOr<Perplexity> ComputePerplexity(
    engine::EngineParts& parts, std::span<const int32_t> tokens, const PerplexityOptions& options,
    int32_t bos_id, const std::function<void(const Perplexity& so_far)>& on_window);

}  // namespace quire::tools
