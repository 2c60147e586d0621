#include "tests/kernels/moe_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "gtest/gtest.h"

#include "kernels/float16.h"

namespace quire::testing {

using kernels::WeightType;
using kernels::WeightView;

TestMixture::TestMixture(WeightType type, const MixtureShape& shape, uint64_t seed)
    : shape_(shape),
      quantized_(!IsFloat(type)),
      router_(RandomWeight(type == WeightType::kBF16 ? type : WeightType::kF32, shape.num_experts,
                           shape.hidden, seed)) {
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    const uint64_t of_expert = seed * 1000 + static_cast<uint64_t>(e) * 3;
    gates_.push_back(RandomWeight(type, shape.intermediate, shape.hidden, of_expert + 1));
    ups_.push_back(RandomWeight(type, shape.intermediate, shape.hidden, of_expert + 2));
    downs_.push_back(RandomWeight(type, shape.hidden, shape.intermediate, of_expert + 3));
  }
}

void TestMixture::Prefer(int64_t expert) {
  const float weight = 1024.0f;
  const auto at = static_cast<size_t>(expert * shape_.hidden);
  router_.values[at] = weight;
  if (router_.view.type == WeightType::kF32) {
    std::memcpy(router_.bytes.data() + 4 * at, &weight, 4);
  } else {
    const uint16_t bits = kernels::F32ToBf16(weight);
    std::memcpy(router_.bytes.data() + 2 * at, &bits, 2);
  }
}

TestMixture::Prepared TestMixture::Prepare(kernels::Backend& backend) const {
  std::vector<WeightView> up, down;
  for (size_t e = 0; e < gates_.size(); ++e) {
    up.push_back(gates_[e].view);
    up.push_back(ups_[e].view);
    down.push_back(downs_[e].view);
  }
  // The view is of the bytes as they were when it was made: vectors that move keep theirs.
  return {.router = *backend.PrepareWeight({&router_.view, 1}),
          .up = *backend.PrepareWeight(up),
          .down = *backend.PrepareWeight(down)};
}

std::vector<Exact> TestMixture::Expert(int64_t expert, std::span<const Exact> input,
                                       double rounding) const {
  const auto e = static_cast<size_t>(expert);
  std::vector<Exact> inner, y;
  for (int64_t i = 0; i < shape_.intermediate; ++i) {
    Exact unit = ExactSiluMul(ExactProduct(gates_[e], i, input, quantized_),
                              ExactProduct(ups_[e], i, input, quantized_));
    unit.bound += rounding * (std::abs(unit.value) + unit.bound);
    inner.push_back(unit);
  }
  for (int64_t i = 0; i < shape_.hidden; ++i) {
    y.push_back(ExactProduct(downs_[e], i, inner, quantized_));
  }
  return y;
}

TestMixture::Answer TestMixture::Naive(std::span<const float> input,
                                       std::span<const float> residual, double rounding) const {
  const std::vector<Exact> exact_input = ExactValues(input);
  std::vector<Exact> logits;
  double logit_bound = 0.0;
  for (int64_t e = 0; e < shape_.num_experts; ++e) {
    logits.push_back(ExactProduct(router_, e, exact_input, false));
    logit_bound = std::max(logit_bound, logits.back().bound);
  }
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) {
    return logits[static_cast<size_t>(a)].value > logits[static_cast<size_t>(b)].value;
  });
  const auto logit = [&](size_t rank) { return logits[static_cast<size_t>(order[rank])].value; };
  const auto chosen = static_cast<size_t>(shape_.num_chosen);

  Answer answer{.margin = std::numeric_limits<double>::infinity()};
  if (chosen < order.size()) {
    answer.margin = logit(chosen - 1) - logit(chosen) - 2 * logit_bound;
  }
  double sum = 0.0;
  for (size_t i = 0; i < (shape_.softmax_over_chosen ? chosen : order.size()); ++i) {
    sum += std::exp(logit(i) - logit(0));
  }
  answer.out = residual.empty() ? std::vector<Exact>(input.size()) : ExactValues(residual);
  double magnitude = 0.0;
  for (size_t i = 0; i < chosen; ++i) {
    answer.chosen.push_back(order[i]);
    const double weight = std::exp(logit(i) - logit(0)) / sum;
    // Two logits' errors in the exponent of numerator and sum each; the sum, e^x and the quotient.
    const double relative =
        4 * logit_bound * 1.01 + (static_cast<double>(order.size()) + 8) * kFloatEpsilon;
    const std::vector<Exact> y = Expert(order[i], exact_input, rounding);
    for (size_t n = 0; n < y.size(); ++n) {
      Exact& out = answer.out[n];
      out.bound += weight * (y[n].bound +
                             (std::abs(y[n].value) + y[n].bound) * (relative + 8 * kFloatEpsilon));
      out.value += weight * y[n].value;
      magnitude = std::max(magnitude, std::abs(out.value));
    }
  }
  for (Exact& out : answer.out) {
    out.bound += 8 * kFloatEpsilon * magnitude + rounding * (std::abs(out.value) + out.bound);
  }
  return answer;
}

std::vector<float> RunMixture(kernels::Backend& backend, const TestMixture::Prepared& weights,
                              const MixtureShape& shape, const std::vector<float>& input,
                              const std::vector<float>& residual) {
  const int64_t num_tokens = static_cast<int64_t>(input.size()) / shape.hidden;
  Owned<float> in = F32({num_tokens, shape.hidden}, input);
  Owned<float> out = F32({num_tokens, shape.hidden}, std::nanf(""));
  kernels::MoeArgs args{.out = out.view,
                        .input = in.view,
                        .router = weights.router.get(),
                        .up = weights.up.get(),
                        .down = weights.down.get(),
                        .num_experts_per_token = shape.num_chosen,
                        .softmax_over_chosen = shape.softmax_over_chosen};
  if (!residual.empty()) {
    out.values = residual;  // in place
    args.residual = out.view;
  }
  const absl::Status status = backend.Moe(args);
  EXPECT_TRUE(status.ok()) << status;
  return out.values;
}

}  // namespace quire::testing
