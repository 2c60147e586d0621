#include "kernels/cpu/moe.h"

#include <algorithm>
#include <utility>

#include "base/math.h"

namespace quire::kernels::cpu {
namespace {

// The number of tokens in one item of cheap row-wise work. For fewer tokens, waking a worker would
// cost more than it saves.
constexpr int64_t kTokensPerItem = 4;

template <typename T>
T* AtLeast(std::vector<T>& values, int64_t size) {
  if (std::ssize(values) < size) values.resize(static_cast<size_t>(size));
  return values.data();
}

template <typename Token>
void ForEachToken(ThreadPool& pool, int64_t num_tokens, Token token) {
  pool.ParallelFor(base::CeilDiv(num_tokens, kTokensPerItem), [&](int64_t item, int) {
    const int64_t end = std::min(num_tokens, (item + 1) * kTokensPerItem);
    for (int64_t t = item * kTokensPerItem; t < end; ++t) token(t);
  });
}

}  // namespace

Moe::Moe(const KernelTable& kernels, ThreadPool& pool, Linear& linear)
    : kernels_(kernels), pool_(pool), linear_(linear) {}

void Moe::Route(const MoeArgs& args) {
  const int64_t num_tokens = args.input.dim(0), num_experts = NumExperts(args);
  const int64_t chosen = args.num_experts_per_token;
  float* const logits = AtLeast(logits_, num_tokens * num_experts);
  int32_t* const experts = AtLeast(experts_, num_tokens * chosen);
  float* const weights = AtLeast(weights_, num_tokens * chosen);
  linear_.Run({.out = TensorView(logits, DType::kF32, {num_tokens, num_experts}),
               .input = args.input,
               .weight = args.router,
               .bias = args.router_bias});
  ForEachToken(pool_, num_tokens, [&](int64_t t) {
    kernels_.route({.logits = logits + t * num_experts,
                    .choice_bias = args.choice_bias.data<float>(),
                    .num_experts = num_experts,
                    .num_chosen = chosen,
                    .kind = args.weights,
                    .experts = experts + t * chosen,
                    .weights = weights + t * chosen});
  });
}

void Moe::GroupByExpert(const MoeArgs& args) {
  const int64_t choices = args.input.dim(0) * args.num_experts_per_token;
  const int64_t num_experts = NumExperts(args);
  ends_.assign(static_cast<size_t>(num_experts), 0);
  for (int64_t i = 0; i < choices; ++i) ++ends_[experts_[i]];
  up_.clear();
  down_.clear();
  int32_t begin = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    const int32_t end = begin + ends_[e];
    ends_[e] = begin;  // grows to `end` as rows are assigned
    if (begin == end) continue;
    up_.push_back({begin, end, e * 2 * IntermediateSize(args)});
    down_.push_back({begin, end, e * args.input.dim(1)});
    begin = end;
  }
  int32_t* const rows = AtLeast(rows_, choices);
  for (int64_t i = 0; i < choices; ++i) rows[i] = ends_[experts_[i]]++;
}

void Moe::Run(const MoeArgs& args) {
  const int64_t num_tokens = args.input.dim(0), hidden = args.input.dim(1);
  if (num_tokens == 0) return;
  Route(args);
  GroupByExpert(args);

  const int64_t chosen = args.num_experts_per_token, choices = num_tokens * chosen;
  float* const input = AtLeast(input_, choices * hidden);
  float* const inner = AtLeast(inner_, choices * IntermediateSize(args));
  float* const y = AtLeast(y_, choices * hidden);
  ForEachToken(pool_, num_tokens, [&](int64_t t) {
    const float* row = args.input.data<float>() + t * hidden;
    for (int64_t i = t * chosen; i < (t + 1) * chosen; ++i) {
      // If weights_scale_input is set, weights_[i] becomes 1 here, so that `combine` does not scale
      // the output by the weight again.
      const float weight = args.weights_scale_input ? std::exchange(weights_[i], 1.0f) : 1.0f;
      std::transform(row, row + hidden, input + rows_[i] * hidden,
                     [weight](float x) { return weight * x; });
    }
  });
  linear_.RunGrouped({.weight = static_cast<const PackedWeight*>(args.up),
                      .input = input,
                      .out = inner,
                      .outputs = IntermediateSize(args),
                      .bias = args.up_bias.data<float>(),
                      .activation = args.activation,
                      .activation_limit = args.activation_limit,
                      .groups = up_});
  linear_.RunGrouped({.weight = static_cast<const PackedWeight*>(args.down),
                      .input = inner,
                      .out = y,
                      .outputs = hidden,
                      .bias = args.down_bias.data<float>(),
                      .groups = down_});
  ForEachToken(pool_, num_tokens, [&](int64_t t) {
    kernels_.combine(
        {.y = y,
         .rows = rows_.data() + t * chosen,
         .weights = weights_.data() + t * chosen,
         .num_rows = chosen,
         .residual = args.residual.empty() ? nullptr : args.residual.data<float>() + t * hidden,
         .out = args.out.data<float>() + t * hidden,
         .count = hidden});
  });
}

}  // namespace quire::kernels::cpu
