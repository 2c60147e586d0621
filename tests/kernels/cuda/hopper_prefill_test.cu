#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/launch.h"
#include "kernels/float16.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/cuda/hopper_prefill.cuh"

namespace quire::testing {
namespace {

using kernels::Bf16ToF32;
using kernels::cuda::Bf16;

struct Sequence {
  int query_len;
  int context_len;
};

// A batch, its cache, and attention over it in float64.
class PrefillCase {
 public:
  PrefillCase(std::vector<Sequence> sequences, int num_kv_heads, int group, int block_size)
      : sequences_(std::move(sequences)),
        num_kv_heads_(num_kv_heads),
        num_heads_(num_kv_heads * group),
        block_size_(block_size) {
    for (const Sequence& sequence : sequences_) {
      query_starts_.push_back(query_starts_.back() + sequence.query_len);
      context_lens_.push_back(sequence.context_len);
      max_blocks_ = std::max(max_blocks_, NumBlocks(sequence));
      num_blocks_ += NumBlocks(sequence);
    }
    FillBlockTable();
    query_ = Normal(int64_t{query_starts_.back()} * num_heads_ * kPrefillHeadDim);
    cache_ = Normal(int64_t{num_blocks_} * 2 * num_kv_heads_ * block_size_ * kPrefillHeadDim);
    for (int h = 0; h < num_heads_; ++h) {
      slopes_.push_back(
          std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(num_heads_)));
    }
  }

  // The kernel's answer, NaN where it wrote nothing.
  template <int kGroup, int kBlockSize, bool kAlibi>
  std::vector<Bf16> Run(kernels::cuda::Device& device) {
    DeviceArray<Bf16> query(device, query_), cache(device, cache_);
    DeviceArray<Bf16> out(device, static_cast<int64_t>(query_.size()));
    DeviceArray<int> table(device, block_table_), starts(device, query_starts_),
        lens(device, context_lens_);
    DeviceArray<float> slopes(device, slopes_);
    const std::vector<PrefillWork> work = Work(kGroup);
    DeviceArray<PrefillWork> device_work(device, work);
    const int64_t row = kPrefillHeadDim * 2, head = row * block_size_, half = head * num_kv_heads_;
    const auto map =
        device.MakeTensorMap({.data = cache.data(),
                              .element_bytes = 2,
                              .rank = 5,
                              .dims = {kPrefillHeadDim, block_size_, num_kv_heads_, 2, num_blocks_},
                              .strides = {2, row, head, half, 2 * half},
                              .box = {64, block_size_, 1, 1, 1}});
    EXPECT_TRUE(map.ok()) << map.status().ToString();
    const PrefillParams params = {*map,
                                  query.data(),
                                  out.data(),
                                  table.data(),
                                  starts.data(),
                                  lens.data(),
                                  device_work.data(),
                                  slopes.data(),
                                  num_heads_,
                                  max_blocks_,
                                  1.0f / std::sqrt(static_cast<float>(kPrefillHeadDim))};
    EXPECT_TRUE(kernels::cuda::Launch(device,
                                      {.grid = {static_cast<unsigned>(work.size())},
                                       .block = {kPrefillThreads},
                                       .shared_bytes = kPrefillSharedBytes},
                                      &HopperPrefillKernel<kGroup, kBlockSize, kAlibi>, params)
                    .ok());
    return out.ToHost();
  }

  // The largest error of `out`, over the bound of each element: at most 1 is right.
  double WorstError(const std::vector<Bf16>& out, bool alibi) const {
    double worst = 0.0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      for (int t = 0; t < sequences_[s].query_len; ++t) {
        for (int h = 0; h < num_heads_; ++h) {
          worst = std::max(worst, WorstErrorOfRow(out, s, t, h, alibi));
        }
      }
    }
    return worst;
  }

 private:
  int NumBlocks(const Sequence& sequence) const {
    return (sequence.context_len + block_size_ - 1) / block_size_;
  }

  std::vector<Bf16> Normal(int64_t count) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    std::normal_distribution<float> normal;
    for (Bf16& value : values) value.bits = kernels::F32ToBf16(normal(random_));
    return values;
  }

  void FillBlockTable() {
    std::vector<int> order(static_cast<size_t>(num_blocks_));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    constexpr int kNeverRead = 1 << 28;
    block_table_.assign(sequences_.size() * static_cast<size_t>(max_blocks_), kNeverRead);
    size_t next = 0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      for (int b = 0; b < NumBlocks(sequences_[s]); ++b) {
        block_table_[s * static_cast<size_t>(max_blocks_) + static_cast<size_t>(b)] = order[next++];
      }
    }
  }

  std::vector<PrefillWork> Work(int group) const {
    std::vector<PrefillWork> work;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      for (int head = 0; head < num_kv_heads_; ++head) {
        for (int row = 0; row < sequences_[s].query_len * group; row += kPrefillRows) {
          work.push_back({static_cast<int>(s), head, row});
        }
      }
    }
    return work;
  }

  const Bf16* CacheRow(size_t sequence, int token, int value, int kv_head) const {
    const int block = block_table_[sequence * static_cast<size_t>(max_blocks_) +
                                   static_cast<size_t>(token / block_size_)];
    const int64_t row = ((int64_t{block} * 2 + value) * num_kv_heads_ + kv_head) * block_size_ +
                        token % block_size_;
    return &cache_[static_cast<size_t>(row * kPrefillHeadDim)];
  }

  double WorstErrorOfRow(const std::vector<Bf16>& out, size_t s, int t, int h, bool alibi) const {
    const int position = sequences_[s].context_len - sequences_[s].query_len + t;
    const int kv_head = h / (num_heads_ / num_kv_heads_);
    const auto offset =
        static_cast<size_t>((int64_t{query_starts_[s] + t} * num_heads_ + h) * kPrefillHeadDim);
    std::vector<double> weights(static_cast<size_t>(position + 1));
    for (int key = 0; key <= position; ++key) {
      const Bf16* const k = CacheRow(s, key, 0, kv_head);
      double score = 0.0;
      for (int d = 0; d < kPrefillHeadDim; ++d) {
        score +=
            double{Bf16ToF32(query_[offset + static_cast<size_t>(d)].bits)} * Bf16ToF32(k[d].bits);
      }
      score /= std::sqrt(static_cast<double>(kPrefillHeadDim));
      if (alibi) score -= double{slopes_[static_cast<size_t>(h)]} * (position - key);
      weights[static_cast<size_t>(key)] = score;
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double total = 0.0;
    for (double& weight : weights) total += weight = std::exp(weight - max);
    std::array<double, kPrefillHeadDim> want = {}, magnitude = {};
    for (int key = 0; key <= position; ++key) {
      const Bf16* const v = CacheRow(s, key, 1, kv_head);
      for (size_t d = 0; d < kPrefillHeadDim; ++d) {
        const double term = weights[static_cast<size_t>(key)] / total * Bf16ToF32(v[d].bits);
        want[d] += term;
        magnitude[d] += std::abs(term);
      }
    }
    double worst = 0.0;
    for (size_t d = 0; d < kPrefillHeadDim; ++d) {
      // Each weight is rounded to bf16 (2^-8 relative), and the result once more; what float32 adds
      // (2^-24 a term and a score's rounding) stays below a tenth of that at these lengths.
      const double bound = 0x1p-8 * 1.1 * (magnitude[d] + std::abs(want[d]));
      const double error = std::abs(Bf16ToF32(out[offset + d].bits) - want[d]) / bound;
      if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
    }
    return worst;
  }

  std::mt19937_64 random_{7};
  const std::vector<Sequence> sequences_;
  const int num_kv_heads_, num_heads_, block_size_;
  int max_blocks_ = 0, num_blocks_ = 0;
  std::vector<int> query_starts_{0}, context_lens_, block_table_;
  std::vector<Bf16> query_, cache_;
  std::vector<float> slopes_;
};

class HopperPrefillTest : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override {
    if (device_->info().compute_capability < 90) GTEST_SKIP() << "needs compute capability 9.0";
  }
  std::unique_ptr<kernels::cuda::Device> device_ = MakeDevice(GetParam());
};

// A whole prompt, a chunk in the middle of one, and a decode, in one launch.
TEST_P(HopperPrefillTest, MixedBatchOfGroupedHeads) {
  PrefillCase batch({{40, 40}, {30, 300}, {1, 200}}, /*num_kv_heads=*/2, /*group=*/4,
                    /*block_size=*/16);
  EXPECT_LE(batch.WorstError(batch.Run<4, 16, false>(*device_), /*alibi=*/false), 1.0);
}

TEST_P(HopperPrefillTest, MixedBatchWithAlibi) {
  PrefillCase batch({{40, 40}, {30, 300}, {1, 200}}, /*num_kv_heads=*/2, /*group=*/4,
                    /*block_size=*/16);
  EXPECT_LE(batch.WorstError(batch.Run<4, 16, true>(*device_), /*alibi=*/true), 1.0);
}

TEST_P(HopperPrefillTest, LargeBlocksWithoutGroups) {
  PrefillCase batch({{150, 150}, {20, 140}}, /*num_kv_heads=*/1, /*group=*/1, /*block_size=*/64);
  EXPECT_LE(batch.WorstError(batch.Run<1, 64, true>(*device_), /*alibi=*/true), 1.0);
}

INSTANTIATE_TEST_SUITE_P(Orders, HopperPrefillTest, ::testing::ValuesIn(kAllThreadOrders));

}  // namespace
}  // namespace quire::testing
