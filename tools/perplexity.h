#pragma once

// Perplexity, which measures how well a model predicts a text: e to the mean negative
// log-likelihood of its tokens.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/load/engine_loader.h"

namespace quire::tools {

// The options decide which tokens are scored, and how much of the text stands before each of them.
//
//   stride 0   llama.cpp's rule (llama-perplexity). Windows of `context` tokens follow one another;
//              tokens left over at the end are dropped. The first token of each window becomes BOS
//              if the tokenizer adds a BOS to a text. All tokens of a window are scored, except the
//              first context / 2 + 1.
//   stride s   Hugging Face's rule ("Perplexity of fixed-length models"). Windows of `context`
//              tokens begin s tokens apart, to the text's end. A window scores the tokens that were
//              in no earlier window, but never its first token.
struct PerplexityOptions {
  int64_t context = 512;    // tokens, at least 4
  int64_t stride = 0;       // at most context
  int64_t max_windows = 0;  // the most windows to use, from the first on; 0: all
};

// Tokens [begin, end) of the text. Tokens [first_scored, end) are scored. The last token is not fed
// to the model, because no token of the window follows it.
struct TextWindow {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first_scored = 0;

  bool operator==(const TextWindow&) const = default;
};

// Returns the windows of a text of `num_tokens` tokens. Returns InvalidArgument when the text has
// too few tokens: fewer than `context` with stride 0, and otherwise fewer than 2.
absl::StatusOr<std::vector<TextWindow>> MakeWindows(int64_t num_tokens,
                                                    const PerplexityOptions& options);

struct Perplexity {
  double perplexity = 0.0;
  double error = 0.0;  // standard error, as if tokens were independent (as in llama.cpp)
  int64_t num_scored = 0;
  int64_t num_windows = 0;
};

// Computes the perplexity of `tokens` on `parts`, whose limits must allow options.context. The
// cache of `parts` is overwritten from block 0. A bos_id that is not negative replaces each
// window's first token. On the CPU, the bits of the result do not depend on limits.max_tokens.
// `on_window` is called after each window with the result so far.
absl::StatusOr<Perplexity> ComputePerplexity(
    engine::EngineParts& parts, std::span<const int32_t> tokens, const PerplexityOptions& options,
    int32_t bos_id, const std::function<void(const Perplexity& so_far)>& on_window);

}  // namespace quire::tools
