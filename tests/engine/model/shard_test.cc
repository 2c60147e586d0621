// Tests tensor-parallel ranks: threads, each with a part of a golden model.

#include "engine/model/shard.h"

#include <barrier>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/model/layers/parameter_loader.h"
#include "kernels/backend_registry.h"
#include "kernels/quant/quantize.h"
#include "tests/engine/model/golden_models.h"

namespace quire::engine {
namespace {

using kernels::Rank;
using testing::GoldenModel;
using testing::GoldenRunner;
using ::testing::HasSubstr;
using testing::Logits;
using testing::ReadGoldenModels;

std::unique_ptr<kernels::Backend> OneThread() {
  return *kernels::CreateBackend({.name = "cpu", .num_threads = 1});
}

// The sums of ranks that are threads of one process, with float32 tensors in memory of the host.
class Sums {
 public:
  explicit Sums(int32_t num_ranks) : tensors_(static_cast<size_t>(num_ranks)), all_(num_ranks) {}

  int32_t num_ranks() const { return static_cast<int32_t>(tensors_.size()); }

  void AllReduce(int32_t rank, const kernels::TensorView& tensor) {
    tensors_[static_cast<size_t>(rank)] = tensor;
    all_.arrive_and_wait();
    std::vector<float> sum(static_cast<size_t>(tensor.num_elements()));
    for (const kernels::TensorView& other : tensors_) {
      EXPECT_EQ(other.num_elements(), tensor.num_elements());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += other.data<const float>()[i];
    }
    all_.arrive_and_wait();
    std::copy(sum.begin(), sum.end(), tensor.data<float>());
  }

 private:
  std::vector<kernels::TensorView> tensors_;
  std::barrier<> all_;
};

class ThreadRank final : public kernels::Communicator {
 public:
  ThreadRank(Sums& sums, int32_t index) : sums_(sums), index_(index) {}
  Rank rank() const override { return {.index = index_, .size = sums_.num_ranks()}; }
  absl::Status AllReduceSum(const kernels::TensorView& tensor) override {
    ++num_sums;
    sums_.AllReduce(index_, tensor);
    return absl::OkStatus();
  }

  int64_t num_sums = 0;

 private:
  Sums& sums_;
  const int32_t index_;
};

// Returns the logits of each rank.
std::vector<Logits> RunRanks(const GoldenModel& golden, int32_t num_ranks, int64_t* num_sums) {
  Sums sums(num_ranks);
  std::vector<Logits> logits(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < num_ranks; ++i) {
    threads.emplace_back([&, i] {
      ThreadRank rank(sums, i);
      logits[static_cast<size_t>(i)] =
          GoldenRunner(golden, OneThread(), &rank)->Prefill(golden.ids);
      if (i == 0) *num_sums = rank.num_sums;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return logits;
}

TEST(ShardTest, OneRankGivesTheBitsOfTheModel) {
  for (const GoldenModel& golden : ReadGoldenModels()) {
    SCOPED_TRACE(golden.name);
    int64_t num_sums = 0;
    EXPECT_EQ(RunRanks(golden, 1, &num_sums)[0],
              GoldenRunner(golden, OneThread())->Prefill(golden.ids));
    // The outputs of mixtures are not sums over ranks.
    if (LargestOf(golden.config, [](const LayerSpec& layer) { return layer.has_experts(); })) {
      continue;
    }
    EXPECT_EQ(num_sums, 2 * golden.config.num_layers());
  }
}

TEST(ShardTest, RanksTogetherAgreeWithTheReference) {
  int64_t num_models = 0, num_with_alibi = 0;
  for (const GoldenModel& golden : ReadGoldenModels()) {
    for (const int32_t num_ranks : {2, 4}) {
      if (!Shard(golden.config, {.size = num_ranks}).ok()) continue;
      SCOPED_TRACE(golden.name + " on " + std::to_string(num_ranks));
      ++num_models;
      num_with_alibi += golden.config.alibi_bias_max ? 1 : 0;
      int64_t num_sums = 0;
      const std::vector<Logits> logits = RunRanks(golden, num_ranks, &num_sums);
      testing::ExpectAgreement(golden.name, golden, logits[0]);
      for (const Logits& other : logits) EXPECT_EQ(other, logits[0]) << "ranks have equal bits";
    }
  }
  EXPECT_GT(num_models, num_with_alibi);
  EXPECT_GE(num_with_alibi, 1);
}

TEST(ShardTest, EveryRankHasItsShareAndFewHeadsAreShared) {
  EXPECT_EQ(ShareOf({.index = 1, .size = 4}, 32).begin, 8);
  EXPECT_EQ(ShareOf({.index = 1, .size = 4}, 32).end, 16);
  for (int32_t i = 0; i < 8; ++i) {  // 2 KV heads on 8 ranks
    EXPECT_EQ(ShareOf({.index = i, .size = 8}, 2).begin, i / 4);
    EXPECT_EQ(ShareOf({.index = i, .size = 8}, 2).end, i / 4 + 1);
  }
}

TEST(ShardTest, EveryRankHasTheScalesOfItsCache) {
  for (const GoldenModel& golden : ReadGoldenModels()) {
    ModelConfig config = golden.config;
    for (LayerSpec& layer : config.layers) layer.attention.cache_scales = {.k = 0.3f, .v = 7.0f};
    const auto part = Shard(config, {.index = 1, .size = 2});
    if (!part.ok()) continue;
    for (const KvLayerShape& layer : KvLayerShapes(*part)) {
      EXPECT_EQ(layer.scales, (kernels::CacheScales{.k = 0.3f, .v = 7.0f})) << golden.name;
    }
  }
}

// One matrix, W[3][64], in Q8_0.
class OneQuantizedMatrix final : public files::TensorList {
 public:
  OneQuantizedMatrix() : bytes_(3 * 2 * 34) {
    std::vector<float> values(3 * 64);
    std::iota(values.begin(), values.end(), -96.0f);
    EXPECT_TRUE(kernels::Quantize(kernels::WeightType::kQ8_0, values, 64, bytes_).ok());
    mutable_tensors() = {
        {.name = "w", .type = kernels::WeightType::kQ8_0, .shape = {3, 64}, .bytes = bytes_}};
  }

 private:
  std::vector<std::byte> bytes_;
};

TEST(ShardTest, ColumnsOfAQuantizedMatrixAreWholeBlocks) {
  const OneQuantizedMatrix weights;
  const auto backend = OneThread();
  ParameterLoader loader(weights, *backend);
  StoredParameter stored = {.parts = {{"w", 3}}, .cols = 64, .wanted_cols = {32, 64}};
  const auto matrix = loader.Matrix(stored);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ((*matrix)->cols(), 32);
  EXPECT_EQ(loader.num_parameters(), 3 * 32);
  stored.wanted_cols = {16, 48};
  EXPECT_THAT(std::string(loader.Matrix(stored).status().message()),
              HasSubstr("want multiples of 32, as Q8_0 is stored in blocks, got 16 to 48"));
}

TEST(ShardTest, WhatCannotBeDividedIsRefusedByName) {
  ModelConfig config = {.layers = {{.attention = {.num_heads = 12, .num_kv_heads = 4},
                                    .feed_forward = {.inner_size = 48}}}};
  const auto error = [&](int32_t size) {
    return std::string(Shard(config, {.size = size}).status().message());
  };
  EXPECT_EQ(error(4), "");
  EXPECT_EQ(error(12), "") << "KV heads of which several ranks have each";
  EXPECT_EQ(error(5), "tensor parallel: layer 0: want a multiple of 5 query heads, got 12");
  EXPECT_EQ(error(6),
            "tensor parallel: layer 0: want a multiple of 6 KV heads, or a divisor of it, got 4");
  config.layers[0].feed_forward.inner_size = 50;
  EXPECT_EQ(error(4), "tensor parallel: layer 0: want a multiple of 4 inner units, got 50");
  config.layers[0].feed_forward = {.inner_size = 48, .experts = {.count = 8}};
  EXPECT_THAT(error(2), HasSubstr("several ranks can share, got a mixture of experts"));
  EXPECT_EQ(error(1), "");
  config.layers[0].feed_forward.experts = {};
  config.layers[0].attention.qk_norm = QkNormScope::kToken;
  EXPECT_THAT(error(2), HasSubstr("got a norm over all heads"));
}

}  // namespace
}  // namespace quire::engine
