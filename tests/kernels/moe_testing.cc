#include "tests/kernels/moe_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <numeric>

#include "gtest/gtest.h"

#include "kernels/quant/float16.h"

namespace quire::testing {

using kernels::WeightType;
using kernels::WeightView;

namespace {

// Returns the bytes of `values` as activations of `dtype`.
std::vector<std::byte> Encode(kernels::DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(SizeOf(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == kernels::DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      continue;
    }
    const uint16_t bits = dtype == kernels::DType::kF16 ? kernels::F32ToF16(values[i])
                                                        : kernels::F32ToBf16(values[i]);
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  return bytes;
}

std::vector<float> Decode(kernels::DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(SizeOf(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == kernels::DType::kF32) {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
      continue;
    }
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    values[i] = dtype == kernels::DType::kF16 ? kernels::F16ToF32(bits) : kernels::Bf16ToF32(bits);
  }
  return values;
}

}  // namespace

TestMixture::TestMixture(WeightType type, const MixtureShape& shape, uint64_t seed)
    : shape_(shape),
      quantized_(IsQuantized(type)),
      router_(RandomWeight(IsFloat(type) ? type : WeightType::kF32, shape.num_experts, shape.hidden,
                           seed)) {
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    const uint64_t of_expert = seed * 1000 + static_cast<uint64_t>(e) * 3;
    gates_.push_back(RandomWeight(type, shape.intermediate, shape.hidden, of_expert + 1));
    ups_.push_back(RandomWeight(type, shape.intermediate, shape.hidden, of_expert + 2));
    downs_.push_back(RandomWeight(shape.down_type.value_or(type), shape.hidden, shape.intermediate,
                                  of_expert + 3));
  }
  if (shape.choice_bias) choice_bias_ = Normal(seed + 103, shape.num_experts, 0.2f);
  if (!shape.biases) return;
  router_bias_ = Normal(seed + 100, shape.num_experts);
  up_bias_ = Normal(seed + 101, shape.num_experts * 2 * shape.intermediate);
  down_bias_ = Normal(seed + 102, shape.num_experts * shape.hidden);
}

TestMixture TestMixture::Rounded(kernels::DType dtype) const {
  TestMixture rounded = *this;
  rounded.quantized_ = false;
  const auto round = [&](TestWeight& weight) {
    weight.bytes = Encode(dtype, weight.values);
    weight.values = Decode(dtype, weight.bytes);
    weight.view = {.type = dtype == kernels::DType::kF32   ? WeightType::kF32
                           : dtype == kernels::DType::kF16 ? WeightType::kF16
                                                           : WeightType::kBF16,
                   .rows = weight.view.rows,
                   .cols = weight.view.cols,
                   .bytes = weight.bytes};
  };
  round(rounded.router_);
  for (std::vector<TestWeight>* all : {&rounded.gates_, &rounded.ups_, &rounded.downs_}) {
    for (TestWeight& weight : *all) round(weight);
  }
  return rounded;
}

void TestMixture::SetRouterWeight(size_t at, float weight) {
  router_.values[at] = weight;
  if (router_.view.type == WeightType::kF32) {
    std::memcpy(router_.bytes.data() + 4 * at, &weight, 4);
  } else {
    const uint16_t bits = router_.view.type == WeightType::kF16 ? kernels::F32ToF16(weight)
                                                                : kernels::F32ToBf16(weight);
    std::memcpy(router_.bytes.data() + 2 * at, &bits, 2);
  }
}

void TestMixture::Prefer(int64_t expert) {
  SetRouterWeight(static_cast<size_t>(expert * shape_.hidden), 1024.0f);
}

void TestMixture::RoundRouter() {
  for (size_t i = 0; i < router_.values.size(); ++i) {
    SetRouterWeight(i, std::round(router_.values[i] * 64.0f) / 64.0f);
  }
}

namespace {

// Copies `values` to memory of `backend`. Returns an empty buffer if there are no values.
kernels::DeviceBuffer InMemory(kernels::Backend& backend, std::span<const float> values) {
  if (values.empty()) return {};
  kernels::DeviceBuffer buffer = *backend.Allocate(std::ssize(values) * 4);
  EXPECT_TRUE(backend.CopyToDevice(buffer.data(), values.data(), buffer.bytes()).ok());
  EXPECT_TRUE(backend.Synchronize().ok());
  return buffer;
}

kernels::TensorView VectorIn(const kernels::DeviceBuffer& buffer) {
  if (buffer.bytes() == 0) return {};
  return kernels::TensorView(buffer.data(), kernels::DType::kF32, {buffer.bytes() / 4});
}

// Returns `exact` plus element `at` of `bias`. The bound includes the rounding of the float sum.
Exact PlusBias(Exact exact, const std::vector<float>& bias, int64_t at) {
  if (bias.empty()) return exact;
  exact.value += double{bias[static_cast<size_t>(at)]};
  exact.bound += kFloatEpsilon * (std::abs(exact.value) + exact.bound);
  return exact;
}

}  // namespace

TestMixture::Prepared TestMixture::Prepare(kernels::Backend& backend) const {
  std::vector<WeightView> up, down;
  std::deque<std::vector<std::byte>> fused;
  for (size_t e = 0; e < gates_.size(); ++e) {
    const WeightView gate = gates_[e].view;
    if (shape_.fused) {
      std::vector<std::byte>& bytes = fused.emplace_back(gate.bytes.begin(), gate.bytes.end());
      bytes.insert(bytes.end(), ups_[e].view.bytes.begin(), ups_[e].view.bytes.end());
      up.push_back({gate.type, 2 * gate.rows, gate.cols, bytes});
    } else {
      up.push_back(gate);
      up.push_back(ups_[e].view);
    }
    down.push_back(downs_[e].view);
  }
  // Each view was made before its TestWeight was moved. The view is still valid, because moving a
  // std::vector keeps its bytes in place.
  return {.router = *backend.PrepareWeight({&router_.view, 1}),
          .up = *backend.PrepareMoeWeight(up),
          .down = *backend.PrepareMoeWeight(down),
          .router_bias = InMemory(backend, router_bias_),
          .up_bias = InMemory(backend, up_bias_),
          .down_bias = InMemory(backend, down_bias_),
          .choice_bias = InMemory(backend, choice_bias_)};
}

std::vector<Exact> TestMixture::Expert(int64_t expert, std::span<const Exact> input,
                                       double rounding) const {
  const auto e = static_cast<size_t>(expert);
  std::vector<Exact> inner, y;
  for (int64_t i = 0; i < shape_.intermediate; ++i) {
    const int64_t row = expert * 2 * shape_.intermediate + i;
    const Exact gate = PlusBias(ExactProduct(gates_[e], i, input, quantized_), up_bias_, row);
    const Exact up =
        PlusBias(ExactProduct(ups_[e], i, input, quantized_), up_bias_, row + shape_.intermediate);
    Exact unit =
        shape_.limit > 0.0f ? ExactClampedSiluMul(gate, up, shape_.limit) : ExactSiluMul(gate, up);
    unit.bound += rounding * (std::abs(unit.value) + unit.bound);
    inner.push_back(unit);
  }
  for (int64_t i = 0; i < shape_.hidden; ++i) {
    y.push_back(PlusBias(ExactProduct(downs_[e], i, inner, quantized_), down_bias_,
                         expert * shape_.hidden + i));
  }
  return y;
}

TestMixture::Answer TestMixture::Naive(std::span<const float> input,
                                       std::span<const float> residual, double rounding) const {
  const std::vector<Exact> exact_input = ExactValues(input);
  std::vector<Exact> logits;
  double logit_bound = 0.0;
  for (int64_t e = 0; e < shape_.num_experts; ++e) {
    logits.push_back(PlusBias(ExactProduct(router_, e, exact_input, false), router_bias_, e));
    logit_bound = std::max(logit_bound, logits.back().bound);
  }
  const bool normed = shape_.weights == kernels::ExpertWeights::kNormedLogistic;
  const auto logistic_of = [](double x) { return 1 / (1 + std::exp(-x)); };
  // The values that rank the experts. The slope of the logistic function is at most 1 / 4.
  std::vector<double> values;
  double value_bound = normed ? logit_bound / 4 + 8 * kFloatEpsilon : logit_bound;
  for (size_t e = 0; e < logits.size(); ++e) {
    values.push_back(normed ? logistic_of(logits[e].value) : logits[e].value);
    if (shape_.choice_bias) values.back() += double{choice_bias_[e]};
  }
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  const auto logit = [&](size_t rank) { return logits[static_cast<size_t>(order[rank])].value; };
  const auto chosen = static_cast<size_t>(shape_.num_chosen);

  Answer answer{.margin = std::numeric_limits<double>::infinity()};
  if (chosen < order.size()) {
    const auto value = [&](size_t rank) { return values[static_cast<size_t>(order[rank])]; };
    answer.margin = value(chosen - 1) - value(chosen) - 2 * value_bound;
  }
  const bool logistic = shape_.weights == kernels::ExpertWeights::kLogistic;
  const bool over_chosen = shape_.weights == kernels::ExpertWeights::kSoftmaxOfChosen;
  double sum = 0.0;
  for (size_t i = 0; i < (over_chosen || normed ? chosen : order.size()); ++i) {
    sum += normed ? logistic_of(logit(i)) : std::exp(logit(i) - logit(0));
  }
  answer.out = residual.empty() ? std::vector<Exact>(input.size()) : ExactValues(residual);
  double magnitude = 0.0;
  for (size_t i = 0; i < chosen; ++i) {
    answer.chosen.push_back(order[i]);
    const double expert_weight = logistic ? logistic_of(logit(i))
                                 : normed ? logistic_of(logit(i)) / sum
                                          : std::exp(logit(i) - logit(0)) / sum;
    // A weight of a softmax is e^(logit - largest logit) / sum. The exponents in the numerator and
    // in the sum each have the errors of two logits. e^x, the sum and the quotient are rounded,
    // too. The relative error of a logistic weight is at most that of e^-logit.
    const double weight_error =
        4 * logit_bound * 1.01 + (static_cast<double>(order.size()) + 8) * kFloatEpsilon;
    std::vector<Exact> expert_input = exact_input;
    double weight = expert_weight, relative = weight_error;
    if (shape_.weights_scale_input) {
      for (Exact& x : expert_input) {
        x.value *= expert_weight;
        x.bound += std::abs(x.value) * (weight_error + kFloatEpsilon);
      }
      weight = 1.0;
      relative = 0.0;
    }
    const std::vector<Exact> y = Expert(order[i], expert_input, rounding);
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
  const kernels::DType dtype = backend.activation_dtype();
  const int64_t num_tokens = static_cast<int64_t>(input.size()) / shape.hidden;
  const auto upload = [&](const std::vector<float>& values) {
    const std::vector<std::byte> bytes = Encode(dtype, values);
    kernels::DeviceBuffer buffer = *backend.Allocate(std::ssize(bytes));
    EXPECT_TRUE(backend.CopyToDevice(buffer.data(), bytes.data(), std::ssize(bytes)).ok());
    EXPECT_TRUE(backend.Synchronize().ok());
    return buffer;
  };
  const kernels::DeviceBuffer in = upload(input);
  // The residual is added in place, so `out` initially holds it.
  const kernels::DeviceBuffer out =
      upload(residual.empty() ? std::vector<float>(input.size(), std::nanf("")) : residual);
  const auto view = [&](const kernels::DeviceBuffer& buffer) {
    return kernels::TensorView(buffer.data(), dtype, {num_tokens, shape.hidden});
  };
  const absl::Status status =
      backend.Moe({.out = view(out),
                   .input = view(in),
                   .router = weights.router.get(),
                   .up = weights.up.get(),
                   .down = weights.down.get(),
                   .router_bias = VectorIn(weights.router_bias),
                   .choice_bias = VectorIn(weights.choice_bias),
                   .up_bias = VectorIn(weights.up_bias),
                   .down_bias = VectorIn(weights.down_bias),
                   .residual = residual.empty() ? kernels::TensorView() : view(out),
                   .num_experts_per_token = shape.num_chosen,
                   .weights = shape.weights,
                   .weights_scale_input = shape.weights_scale_input,
                   .activation = shape.limit > 0.0f ? kernels::Activation::kClampedSiluMul
                                                    : kernels::Activation::kSiluMul,
                   .activation_limit = shape.limit});
  EXPECT_TRUE(status.ok()) << status;
  std::vector<std::byte> bytes(input.size() * static_cast<size_t>(SizeOf(dtype)));
  EXPECT_TRUE(backend.CopyToHost(bytes.data(), out.data(), std::ssize(bytes)).ok());
  EXPECT_TRUE(backend.Synchronize().ok());
  return Decode(dtype, bytes);
}

// Runs a mixture in which the output of expert e is 1 at element e and 0 elsewhere, for every
// token. So element e of the mixture's output is the weight of expert e.
std::vector<float> RoutingWeights(kernels::Backend& backend, const std::vector<float>& logits,
                                  int64_t num_experts, int64_t num_chosen,
                                  kernels::ExpertWeights kind, float gain) {
  // The input has one element more than there are experts. This last element is always 1. Each
  // expert computes its hidden unit from the last element alone.
  const int64_t hidden = num_experts + 1, num_tokens = std::ssize(logits) / num_experts;
  std::vector<float> router(static_cast<size_t>(num_experts * hidden));
  std::vector<float> up(static_cast<size_t>(num_experts * 2 * hidden));
  std::vector<float> down(static_cast<size_t>(num_experts * hidden));
  for (int64_t e = 0; e < num_experts; ++e) {
    router[static_cast<size_t>(e * hidden + e)] = gain;
    up[static_cast<size_t>(2 * e * hidden + num_experts)] = 32.0f;  // silu(32) is 32
    up[static_cast<size_t>((2 * e + 1) * hidden + num_experts)] = 1.0f / 32;
    down[static_cast<size_t>(e * hidden + e)] = 1.0f;
  }
  const auto prepare = [&](const std::vector<float>& values, int64_t cols) {
    const WeightView view{WeightType::kF32, std::ssize(values) / cols, cols,
                          std::as_bytes(std::span(values))};
    return *backend.PrepareMoeWeight({&view, 1});
  };
  std::vector<float> input;
  for (int64_t t = 0; t < num_tokens; ++t) {
    input.insert(input.end(), logits.begin() + t * num_experts,
                 logits.begin() + (t + 1) * num_experts);
    input.push_back(1.0f);
  }
  const std::vector<float> out = RunMixture(
      backend,
      {.router = prepare(router, hidden), .up = prepare(up, hidden), .down = prepare(down, 1)},
      {.num_experts = num_experts, .hidden = hidden, .num_chosen = num_chosen, .weights = kind},
      input);
  std::vector<float> weights;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const auto row = out.begin() + t * hidden;
    EXPECT_TRUE(row[num_experts] == 0.0f || std::isnan(row[num_experts]));
    weights.insert(weights.end(), row, row + num_experts);
  }
  return weights;
}

void ExpectRouterOrder(kernels::Backend& backend) {
  constexpr int64_t kTokens = 12;
  const MixtureShape shape{.num_experts = 6, .num_chosen = 4};
  const auto hidden = static_cast<size_t>(shape.hidden);
  std::vector<float> input = Normal(21, kTokens * shape.hidden);
  for (size_t at = 0; at < input.size(); at += hidden) input[at] = std::abs(input[at]) + 0.1f;
  const TestMixture mixture(WeightType::kF32, shape, 20);
  const auto weights = mixture.Prepare(backend);
  const std::vector<float> got = RunMixture(backend, weights, shape, input);

  // If only one expert is chosen, its weight is 1, so the mixture's output is the output of that
  // expert.
  MixtureShape alone = shape;
  alone.num_chosen = 1;
  std::vector<std::vector<float>> outputs;
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    TestMixture preferring(WeightType::kF32, alone, 20);
    preferring.Prefer(e);
    outputs.push_back(RunMixture(backend, preferring.Prepare(backend), alone, input));
  }
  std::vector<float> logits(static_cast<size_t>(kTokens * shape.num_experts));
  const kernels::DeviceBuffer in = InMemory(backend, input), out = InMemory(backend, logits);
  using kernels::DType;
  EXPECT_TRUE(
      backend
          .Linear({.out = kernels::TensorView(out.data(), DType::kF32, {kTokens, 6}),
                   .input = kernels::TensorView(in.data(), DType::kF32, {kTokens, shape.hidden}),
                   .weight = weights.router.get()})
          .ok());
  EXPECT_TRUE(backend.CopyToHost(logits.data(), out.data(), out.bytes()).ok());
  EXPECT_TRUE(backend.Synchronize().ok());
  const std::vector<float> parts =
      RoutingWeights(backend, logits, shape.num_experts, shape.num_chosen);

  int64_t decided = 0;  // the number of sums that the reverse order changes
  for (size_t t = 0; t < kTokens; ++t) {
    const float* logit = logits.data() + t * 6;
    std::vector<size_t> order(6);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](size_t a, size_t b) { return logit[a] > logit[b]; });
    order.resize(static_cast<size_t>(shape.num_chosen));
    for (size_t i = t * hidden; i < (t + 1) * hidden; ++i) {
      float sum = 0.0f, other = 0.0f;
      for (const size_t e : order) sum = std::fma(parts[t * 6 + e], outputs[e][i], sum);
      std::ranges::for_each(order.rbegin(), order.rend(), [&](size_t e) {
        other = std::fma(parts[t * 6 + e], outputs[e][i], other);
      });
      ASSERT_EQ(got[i], sum) << "token " << t;
      decided += sum != other;
    }
  }
  EXPECT_GT(decided, kTokens);
}

}  // namespace quire::testing
