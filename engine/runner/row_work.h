#pragma once

// Lists what is computed from each row of a step's logits.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/scheduler/step_plan.h"
#include "kernels/ops/sample.h"

namespace quire::engine {

struct RowWork {
  enum class Kind : uint8_t {
    kDraw,    // a token is drawn
    kVerify,  // a token is drawn and compared with the drafted token `given`
    kPrompt,  // the log-probability of a token of the prompt is computed
    kScore,   // the log-probability of a token of a continuation is computed
    kTopK,    // the best tokens are listed, for a beam search
    kCheck,   // the row of a prompt to pin, which is a distribution if K and V are sound
  };
  Kind kind = Kind::kDraw;
  int32_t entry = 0;   // index in StepPlan::entries
  int32_t row = 0;     // index among the step's rows of logits
  int32_t sample = 0;  // the sample or the continuation of the request
  // How many of the most likely tokens to list; kTopK: of those that may be drawn. If unset, a draw
  // needs no log-probability.
  std::optional<int32_t> num_top;
  int32_t token = -1;  // kDraw and kVerify: the index of the token in SampledTokens::tokens
  int32_t given = -1;  // kVerify, kPrompt and kScore: the token
  // kPrompt and kScore: the place of the token in the prompt or in the continuation. kDraw and
  // kVerify: the number of drafted tokens before the drawn one.
  int64_t index = 0;

  bool draws() const { return kind == Kind::kDraw || kind == Kind::kVerify; }
};

// Writes the work of all rows into `works`, in the order of the plan's entries. Within an entry,
// the kPrompt works come first. A row may have several works: all samples of a request draw from
// the last row of the prompt. An entry whose tokens are drawn has a kVerify work for each drafted
// token, and then exactly num_samples kDraw works.
// An entry of a beam search has one kTopK work where its tokens are chosen.
// Returns the size of the step's SampledTokens::tokens.
int32_t ListRowWork(const StepPlan& plan, std::vector<RowWork>& works);

// Returns the input of the op Sample for a work, without the sequence. It refers to `request` and
// `tokens`. For a draw and for kTopK, `tokens` precede the drawn one, and `num_generated` also
// counts a token in flight.
kernels::SampleRow MakeSampleRow(const RowWork& work, const Request& request,
                                 std::span<const int32_t> tokens, int64_t num_generated);

}  // namespace quire::engine
