// A whole model on the CUDA backend over the emulated device: the saved logits within their bound,
// and the tokens that the CPU backend takes, whatever the chunks and the batch.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/model/llama.h"
#include "kernels/backend_registry.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/emulated_device.h"
#include "tests/engine/model/llama_goldens.h"
#include "tests/testing/in_memory_weights.h"
#include "tests/testing/model_steps.h"

namespace quire::engine {
namespace {

using kernels::cuda::emulator::ThreadOrder;

constexpr int32_t kBlockSize = 16;
constexpr int64_t kNumBlocks = 16;
const std::vector<int32_t> kBlocks = {7, 2, 12, 4, 14}, kOtherBlocks = {1, 3, 5};

std::unique_ptr<kernels::Backend> CudaOnEmulator(ThreadOrder order) {
  auto device = std::make_unique<kernels::cuda::emulator::EmulatedDevice>(
      kernels::cuda::emulator::EmulatorOptions{.execution = {.order = order, .seed = 1}});
  // Scratch for a few tokens, so that steps take several rounds of it.
  return *kernels::cuda::CreateCudaBackend(std::move(device), {.linear_scratch_bytes = 4096});
}

// One model on one backend with a cache of its own, poisoned with NaN.
class Runner {
 public:
  Runner(const GoldenCase& golden, std::unique_ptr<kernels::Backend> backend)
      : backend_(std::move(backend)), weights_(testing::MakeTinyLlama(golden.shape)) {
    ModelConfig config = golden.config;
    config.rope.layout = kernels::RopeLayout::kHalfSplit;
    model_ = *CreateLlama(config, weights_, TensorNaming::kHuggingFace, *backend_,
                          {.max_tokens = 128,
                           .max_seqs = 8,
                           .max_logit_rows = 128,
                           .max_model_len = 256,
                           .block_size = kBlockSize});
    cache_ = *KvCache::Create(*backend_,
                              {.num_layers = config.num_hidden_layers,
                               .num_kv_heads = config.num_key_value_heads,
                               .head_dim = config.head_dim,
                               .block_size = kBlockSize,
                               .dtype = kernels::DType::kF32},
                              kNumBlocks);
    const std::vector<float> poison(static_cast<size_t>(cache_.blocks().num_elements()),
                                    std::nanf(""));
    EXPECT_TRUE(backend_->CopyToDevice(cache_.blocks().raw(), poison.data(), cache_.bytes()).ok());
  }

  Logits Step(const std::vector<testing::StepChunk>& chunks) {
    const absl::StatusOr<kernels::TensorView> logits =
        model_->Forward(testing::MakeStep(chunks, kBlockSize), cache_);
    EXPECT_TRUE(logits.ok()) << logits.status();
    return Logits(logits->data<float>(), logits->data<float>() + logits->num_elements());
  }

  // The whole prompt, `chunk` tokens a step.
  Logits Prefill(const std::vector<int32_t>& ids, int64_t chunk) {
    Logits all;
    const auto size = static_cast<int64_t>(ids.size());
    for (int64_t begin = 0; begin < size; begin += chunk) {
      const Logits part = Step({{.tokens = &ids,
                                 .begin = begin,
                                 .count = std::min(chunk, size - begin),
                                 .blocks = kBlocks}});
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  // The tokens taken greedily after the first `prompt` of `ids`, as many as there are `ids` in all,
  // the prompt in chunks; with `other`, beside a second sequence that decodes in the same steps.
  std::vector<int32_t> Generate(std::vector<int32_t> ids, int64_t prompt, int64_t chunk,
                                const std::vector<int32_t>* other) {
    const auto size = static_cast<int64_t>(ids.size());
    int64_t other_position = 0;
    for (int64_t begin = 0; begin < size;) {
      const int64_t count = begin < prompt ? std::min(chunk, prompt - begin) : 1;
      std::vector<testing::StepChunk> chunks = {
          {.tokens = &ids, .begin = begin, .count = count, .blocks = kBlocks}};
      if (other != nullptr && other_position < static_cast<int64_t>(other->size())) {
        chunks.push_back(
            {.tokens = other, .begin = other_position++, .count = 1, .blocks = kOtherBlocks});
      }
      const Logits logits = Step(chunks);
      begin += count;
      if (begin < prompt || begin == size) continue;
      const int64_t vocab = model_->config().vocab_size;
      const auto row = logits.begin() + (count - 1) * vocab;
      ids[static_cast<size_t>(begin)] =
          static_cast<int32_t>(std::max_element(row, row + vocab) - row);
    }
    return {ids.begin() + prompt, ids.end()};
  }

 private:
  std::unique_ptr<kernels::Backend> backend_;
  testing::InMemoryWeights weights_;
  std::unique_ptr<Model> model_;
  KvCache cache_;
};

TEST(LlamaCudaTest, LogitsAgreeWithTransformersWholeAndInChunks) {
  for (const GoldenCase& golden : ReadGoldens()) {
    SCOPED_TRACE(golden.name);
    const Logits whole = Runner(golden, CudaOnEmulator(ThreadOrder::kForward))
                             .Prefill(golden.ids, static_cast<int64_t>(golden.ids.size()));
    ASSERT_EQ(whole.size(), golden.logits.size());
    double worst = 0.0;
    for (size_t i = 0; i < whole.size(); ++i) {
      worst = std::max(worst, std::abs(double{golden.logits[i]} - whole[i]));
    }
    EXPECT_LE(worst, golden.bound);
    std::printf("%-14s worst %.2e bound %.2e\n", golden.name.c_str(), worst, golden.bound);
    EXPECT_EQ(Runner(golden, CudaOnEmulator(ThreadOrder::kRandom)).Prefill(golden.ids, 7), whole);
  }
}

TEST(LlamaCudaTest, TakesTheTokensOfTheCpuBackendAloneChunkedAndBatched) {
  for (const GoldenCase& golden : ReadGoldens()) {
    if (golden.name != "gqa_untied") continue;  // one of them takes a second or two
    SCOPED_TRACE(golden.name);
    constexpr int64_t kPrompt = 37;
    const std::vector<int32_t> other(golden.ids.rbegin(), golden.ids.rbegin() + 40);
    const std::vector<int32_t> want =
        Runner(golden, *kernels::CreateBackend({.name = "cpu", .num_threads = 1}))
            .Generate(golden.ids, kPrompt, kPrompt, nullptr);
    for (const ThreadOrder order :
         {ThreadOrder::kForward, ThreadOrder::kReverse, ThreadOrder::kRandom}) {
      const auto generate = [&](int64_t chunk, const std::vector<int32_t>* beside) {
        return Runner(golden, CudaOnEmulator(order)).Generate(golden.ids, kPrompt, chunk, beside);
      };
      EXPECT_EQ(generate(kPrompt, nullptr), want) << "alone";
      EXPECT_EQ(generate(10, nullptr), want) << "in chunks";
      EXPECT_EQ(generate(kPrompt, &other), want) << "beside another";
      EXPECT_EQ(generate(10, &other), want) << "in chunks beside another";
    }
  }
}

}  // namespace
}  // namespace quire::engine
