// Tests whole models on the CUDA backend with this build's device. The logits must match the saved
// logits within their bound. The generated tokens must equal those of the CPU backend, for any
// chunks and batch.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/backend_registry.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "tests/engine/model/golden_models.h"
#include "tests/engine/model/scaled_cache_model.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::engine {
namespace {

using testing::GoldenModel;
using testing::GoldenRunner;
using testing::kAllThreadOrders;
using testing::Logits;
using testing::ModelRunner;
using testing::ReadGoldenLlamas;
using testing::ReadGoldenModels;
using testing::RelativeError;
using testing::ThreadOrder;

std::unique_ptr<kernels::Backend> Cuda(ThreadOrder order,
                                       kernels::DType dtype = kernels::DType::kF32) {
  // In float32 the scratch memory has room for only a few tokens, so the backend processes the
  // tokens of a step in several parts. In half precision only a deterministic backend gives a
  // sequence the same bits in every step. This backend needs more scratch memory.
  const bool is_half = dtype != kernels::DType::kF32;
  return *kernels::cuda::CreateCudaBackend(testing::MakeDevice(order),
                                           {.activation_dtype = dtype,
                                            .linear_scratch_bytes = is_half ? 1 << 20 : 4096,
                                            .deterministic = is_half});
}

// Returns the greedy tokens that follow the first `prompt` tokens of `golden`. Prompt and result
// together have as many tokens as `golden`. The prompt is computed in chunks of `chunk` tokens. If
// `other` is not null, a second sequence decodes the tokens of `other` in the same steps.
std::vector<int32_t> Generate(const GoldenModel& golden, std::unique_ptr<kernels::Backend> backend,
                              int64_t prompt, int64_t chunk, const std::vector<int32_t>* other) {
  GoldenRunner runner(golden, std::move(backend));
  std::vector<int32_t> ids = golden.ids;
  const auto size = static_cast<int64_t>(ids.size());
  int64_t other_position = 0;
  for (int64_t begin = 0; begin < size;) {
    const int64_t count = begin < prompt ? std::min(chunk, prompt - begin) : 1;
    std::vector<testing::StepChunk> chunks = {
        {.tokens = &ids, .begin = begin, .count = count, .blocks = ModelRunner::kBlocks}};
    if (other != nullptr && other_position < static_cast<int64_t>(other->size())) {
      chunks.push_back(
          {.tokens = other, .begin = other_position++, .count = 1, .blocks = {1, 3, 5}});
    }
    const Logits logits = runner->Step(chunks);
    begin += count;
    if (begin < prompt || begin == size) continue;
    const int64_t vocab = golden.config.vocab_size;
    const auto row = logits.begin() + (count - 1) * vocab;
    ids[static_cast<size_t>(begin)] =
        static_cast<int32_t>(std::max_element(row, row + vocab) - row);
  }
  return {ids.begin() + prompt, ids.end()};
}

TEST(DecoderCudaTest, LogitsAgreeWithTheReferenceWholeAndInChunks) {
  for (const GoldenModel& golden : ReadGoldenModels()) {
    SCOPED_TRACE(golden.name);
    const Logits whole = GoldenRunner(golden, Cuda(ThreadOrder::kForward))->Prefill(golden.ids);
    testing::ExpectAgreement(golden.name, golden, whole);
    const Logits chunked = GoldenRunner(golden, Cuda(ThreadOrder::kRandom))->Prefill(golden.ids, 7);
    testing::ExpectAgreement(golden.name, golden, chunked);
  }
}

class CallCountingDevice final : public kernels::cuda::ForwardingDevice {
 public:
  explicit CallCountingDevice(int& num_calls)
      : ForwardingDevice(testing::MakeDevice()), num_calls_(num_calls) {}
  absl::Status LaunchKernel(const kernels::cuda::KernelLaunch& launch) override {
    ++num_calls_;
    return ForwardingDevice::LaunchKernel(launch);
  }
  absl::Status Gemm(const kernels::cuda::GemmArgs& args) override {
    ++num_calls_;
    return ForwardingDevice::Gemm(args);
  }

 private:
  int& num_calls_;
};

// Its scratch memory is for the largest step, however little there was at first. One model of each
// kind of feed-forward network is tried, and all whose layers differ in it.
TEST(DecoderCudaTest, AfterItsRehearsalEveryOpRunsAtOnce) {
  std::set<std::tuple<kernels::Activation, Residual, bool, bool>> kinds;
  for (const GoldenModel& golden : ReadGoldenModels()) {
    SCOPED_TRACE(golden.name);
    const auto& layers = golden.config.layers;
    const auto is_new = [&](const LayerSpec& layer) {
      return kinds
          .emplace(layer.feed_forward.activation, layer.residual, layer.has_experts(),
                   layer.has_experts() && layer.feed_forward.dense_inner_size() > 0)
          .second;
    };
    const bool is_mixed = std::ranges::adjacent_find(layers, std::not_equal_to<>(),
                                                     &LayerSpec::feed_forward) != layers.end();
    if (std::ranges::count_if(layers, is_new) == 0 && !is_mixed) continue;
    int num_calls = 0;
    const auto calls_with = [&](int64_t least, int64_t most) {
      GoldenRunner runner(golden, *kernels::cuda::CreateCudaBackend(
                                      std::make_unique<CallCountingDevice>(num_calls),
                                      {.linear_scratch_bytes = least, .most_scratch_bytes = most}));
      num_calls = 0;
      runner->Prefill(golden.ids);
      return num_calls;
    };
    constexpr int64_t kLittle = 4096, kPlenty = int64_t{4} << 20;
    const int at_once = calls_with(kPlenty, 0);
    EXPECT_EQ(calls_with(kLittle, kPlenty), at_once);
    EXPECT_GT(calls_with(kLittle, 0), at_once);
  }
}

// The sums over its ranks are its own.
class OnlyRank final : public kernels::Communicator {
 public:
  kernels::Rank rank() const override { return {.index = 0, .size = 1}; }
  absl::Status AllReduceSum(const kernels::TensorView&) override {
    ++num_sums;
    return absl::OkStatus();
  }

  int num_sums = 0;
};

TEST(DecoderCudaTest, OneRankGivesTheBitsOfTheModel) {
  for (const GoldenModel& golden : ReadGoldenLlamas()) {
    SCOPED_TRACE(golden.name);
    OnlyRank rank;
    EXPECT_EQ(GoldenRunner(golden, Cuda(ThreadOrder::kForward), &rank)->Prefill(golden.ids),
              GoldenRunner(golden, Cuda(ThreadOrder::kForward))->Prefill(golden.ids));
    EXPECT_EQ(rank.num_sums, 2 * golden.config.num_layers());
  }
}

TEST(DecoderCudaTest, TakesTheTokensOfTheCpuBackendAloneChunkedAndBatched) {
  for (const GoldenModel& golden : ReadGoldenLlamas()) {
    if (golden.name != "gqa_untied") continue;  // one model takes a second or two
    SCOPED_TRACE(golden.name);
    constexpr int64_t kPrompt = 37;
    const std::vector<int32_t> other(golden.ids.rbegin(), golden.ids.rbegin() + 40);
    const std::vector<int32_t> want =
        Generate(golden, *kernels::CreateBackend({.name = "cpu", .num_threads = 1}), kPrompt,
                 kPrompt, nullptr);
    for (const ThreadOrder order : kAllThreadOrders) {
      const auto generate = [&](int64_t chunk, const std::vector<int32_t>* beside) {
        return Generate(golden, Cuda(order), kPrompt, chunk, beside);
      };
      EXPECT_EQ(generate(kPrompt, nullptr), want) << "alone";
      EXPECT_EQ(generate(10, nullptr), want) << "in chunks";
      EXPECT_EQ(generate(kPrompt, &other), want) << "beside another";
      EXPECT_EQ(generate(10, &other), want) << "in chunks beside another";
    }
  }
}

// Tests the models with head sizes for which attention on tensor cores has kernels.
TEST(DecoderCudaTest, InHalfPrecisionIsAsFarOffAsItsRoundingsAreAndTheSameInEveryStep) {
  for (const GoldenModel& golden : ReadGoldenLlamas()) {
    if (golden.name != "wide_heads" && golden.name != "head_dim_256") continue;
    for (const kernels::DType dtype : {kernels::DType::kF16, kernels::DType::kBF16}) {
      SCOPED_TRACE(golden.name);
      SCOPED_TRACE(Name(dtype));
      const auto backend = [&] { return Cuda(ThreadOrder::kRandom, dtype); };
      const Logits alone = GoldenRunner(golden, backend())->Prefill(golden.ids);
      ASSERT_EQ(alone.size(), golden.logits.size());
      // Roundings add up as independent errors do. On the way to a logit, the embedding is rounded
      // once. Each layer has ten roundings of activations (norms, Q, K and V, weights, sums) and
      // four of the weights of linear layers. At the end, a norm and the weights of the head are
      // rounded. A rounding is off by at most half the distance between two neighbouring numbers.
      // The root mean square of this error is smaller by a factor of the square root of 3.
      const double roundings = 14.0 * static_cast<double>(golden.config.num_layers()) + 4.0;
      const double rounding = dtype == kernels::DType::kF16 ? 0x1p-11 : 0x1p-8;
      const double relative = RelativeError(alone, golden.logits);
      const double bound = rounding * std::sqrt(roundings);
      std::printf("%-14s %s relative error %.2e bound %.2e\n", golden.name.c_str(),
                  std::string(Name(dtype)).c_str(), relative, bound);
      EXPECT_LE(relative, bound);

      const std::vector<int32_t> other(golden.ids.rbegin(), golden.ids.rbegin() + 40);
      Logits beside =
          GoldenRunner(golden, backend())
              ->Step({{.tokens = &golden.ids,
                       .begin = 0,
                       .count = static_cast<int64_t>(golden.ids.size()),
                       .blocks = ModelRunner::kBlocks},
                      {.tokens = &other, .begin = 0, .count = 40, .blocks = {1, 3, 5}}});
      beside.resize(alone.size());
      EXPECT_LE(RelativeError(beside, golden.logits), bound);
      EXPECT_EQ(beside, alone);
      EXPECT_EQ(GoldenRunner(golden, backend())->Prefill(golden.ids, 7), alone);
    }
  }
}

// The scales of an fp8 cache mean what they mean on a CPU.
TEST(DecoderCudaTest, AnFp8CacheWithScalesAgreesWithFloat64) {
  const testing::ScaledCacheModel model;
  for (const int64_t chunk : {70, 7}) {
    const auto backend = Cuda(ThreadOrder::kForward);
    testing::ExpectAgreement("fp8 cache", model.golden(),
                             model.Run(*backend, kernels::DType::kF8E4M3, chunk));
  }
}

}  // namespace
}  // namespace quire::engine
