// Tests whole engines whose attention skips far keys under ALiBi, on the emulated device: the norms
// of the keys in the cache, whatever wrote them there, and the answers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/attention/qkv_post.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/emulated_device.h"
#include "kernels/quant/float16.h"
#include "tests/testing/engine_harness.h"

namespace quire::engine {
namespace {

using kernels::Bf16ToF32;
using kernels::DType;
using kernels::cuda::AttnParams;
using kernels::cuda::Bf16;
using kernels::cuda::QkvPostParams;
using testing::CollectingSink;
using testing::EngineHarness;
using testing::ExpectSame;
using testing::GreedyParams;
using testing::HarnessOptions;
using testing::RandomIds;

// The observations of a NormsDevice.
struct NormsLog {
  std::map<const void*, QkvPostParams> layers;  // by the cache of the layer
  int64_t attentions = 0;                       // launches of attention with the norms of its layer
  int64_t other_attentions = 0;
  int64_t checks = 0;
};

class NormsDevice final : public kernels::cuda::emulator::EmulatedDevice {
 public:
  explicit NormsDevice(NormsLog& log) : log_(log) {}
  absl::Status LaunchKernel(const kernels::cuda::KernelLaunch& launch) override {
    constexpr auto* kQkvPost = &kernels::cuda::QkvPostKernel<Bf16, Bf16>;
    if (launch.kernel == reinterpret_cast<const void*>(kQkvPost)) {
      QkvPostParams params;
      std::memcpy(&params, launch.params.data(), sizeof(params));
      log_.layers[params.keys] = params;
    } else if (launch.params.size() == sizeof(AttnParams<Bf16>)) {
      AttnParams<Bf16> params;
      std::memcpy(&params, launch.params.data(), sizeof(params));
      if (const auto layer = log_.layers.find(params.kv); layer != log_.layers.end()) {
        const bool has_norms =
            params.key_norms != nullptr && params.key_norms == layer->second.largest_keys;
        ++(has_norms ? log_.attentions : log_.other_attentions);
      }
    }
    return EmulatedDevice::LaunchKernel(launch);
  }

  // A runner marks the end of each step.
  absl::Status Mark(kernels::Event& event) override {
    CheckNorms();
    return EmulatedDevice::Mark(event);
  }

 private:
  // Expects that no key in any block is longer than the norm of its layer and KV head.
  void CheckNorms() {
    for (const auto& [cache, layer] : log_.layers) {
      if (layer.largest_keys == nullptr) continue;
      std::vector<float> norms(static_cast<size_t>(layer.num_kv_heads));
      ASSERT_TRUE(
          CopyToHost(norms.data(), layer.largest_keys, std::ssize(norms) * int64_t{sizeof(float)})
              .ok());
      const int64_t block_keys = int64_t{layer.num_kv_heads} * layer.block_size * layer.key_dim;
      std::vector<uint16_t> keys(static_cast<size_t>(block_keys));
      std::vector<double> longest(norms.size());
      for (int64_t block = 0; block < layer.num_slots / layer.block_size; ++block) {
        const auto* const from = static_cast<const uint16_t*>(cache) + block * layer.block_stride;
        ASSERT_TRUE(CopyToHost(keys.data(), from, block_keys * 2).ok());
        ASSERT_TRUE(Synchronize().ok());
        for (int64_t row = 0; row < block_keys / layer.key_dim; ++row) {
          double squares = 0.0;
          for (int64_t d = 0; d < layer.key_dim; ++d) {
            const double x = Bf16ToF32(keys[static_cast<size_t>(row * layer.key_dim + d)]);
            squares += x * x;
          }
          double& of_head = longest[static_cast<size_t>(row / layer.block_size)];
          of_head = std::max(of_head, std::sqrt(squares));
        }
      }
      for (size_t head = 0; head < norms.size(); ++head) {
        EXPECT_GE(norms[head], longest[head] * (1 - layer.key_dim * 0x1p-24));
        EXPECT_LE(norms[head], 4 * longest[head]);  // a longer key may have been overwritten
        EXPECT_GT(norms[head], 0.0f);
      }
      ++log_.checks;
    }
  }

  NormsLog& log_;
};

class AlibiSkipTest : public ::testing::Test {
 protected:
  std::unique_ptr<EngineHarness> Make(bool skips, HarnessOptions options = {}) {
    options.max_num_batched_tokens = 512;
    options.head_dim = 64;
    options.kv_dtype = DType::kBF16;
    options.make_backend = [&] {
      return *kernels::cuda::CreateCudaBackend(
          std::make_unique<NormsDevice>(log_),
          {.activation_dtype = DType::kBF16, .skips_far_keys = skips});
    };
    log_ = {};
    return EngineHarness::TinyAlibi(options);
  }

  // Runs requests on an engine that reads all keys and on one that skips far keys. Both give the
  // same tokens, because no choice of these requests is a near tie.
  template <typename Run>
  Stats ExpectSameTokens(const HarnessOptions& options, const Run& run) {
    const auto plain = Make(false, options);
    const auto want = run(*plain);
    plain->Stop();
    EXPECT_EQ(log_.attentions, 0);
    const auto skipping = Make(true, options);
    const auto got = run(*skipping);
    skipping->ExpectIdleIsEmpty();
    const Stats stats = skipping->engine().stats();
    skipping->Stop();
    EXPECT_EQ(log_.layers.size(), 2u);
    std::set<const float*> norms;
    for (const auto& [cache, layer] : log_.layers) norms.insert(layer.largest_keys);
    EXPECT_EQ(norms.size(), 2u);
    EXPECT_GT(log_.checks, 10);
    EXPECT_GT(log_.attentions, 2);
    EXPECT_EQ(log_.other_attentions, 0);
    EXPECT_EQ(got, want);
    return stats;
  }

  NormsLog log_;
};

using Answers = std::vector<std::vector<int32_t>>;

Answers RunTogether(EngineHarness& harness, const std::vector<GenerateParams>& all) {
  Answers answers;
  const auto sinks = harness.SubmitTogether(all);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(sinks[i]->WaitFinished());
    for (int32_t k = 0; k < all[i].sampling.n; ++k) {
      answers.push_back(sinks[i]->sample(k).token_ids);
    }
  }
  return answers;
}

TEST_F(AlibiSkipTest, ForksCopyBlocksAndLaterRequestsFindThem) {
  GenerateParams forks = GreedyParams(RandomIds(410, 4), 12);
  forks.sampling.n = 3;
  const Stats stats = ExpectSameTokens({}, [&](EngineHarness& harness) {
    Answers answers = RunTogether(harness, {forks});
    const Answers again = RunTogether(harness, {forks, GreedyParams(RandomIds(30, 9), 20)});
    answers.insert(answers.end(), again.begin(), again.end());
    return answers;
  });
  EXPECT_GT(stats.block_copies, 0);
  EXPECT_GT(stats.prompt_tokens_cached, 400);
}

TEST_F(AlibiSkipTest, PreemptedSequencesComeBack) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 4; ++i) all.push_back(GreedyParams(RandomIds(30 + i, 50 + i), 60));
  const Stats stats = ExpectSameTokens(
      {.num_blocks = 14}, [&](EngineHarness& harness) { return RunTogether(harness, all); });
  EXPECT_GT(stats.preemptions, 0);
}

}  // namespace
}  // namespace quire::engine
