// The reference attention kernel against doubles, in three orders of threads: prefill, chunks,
// decodes and an empty query in one batch, over blocks that are not neighbours.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/ops.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::Decode;
using testing::DeviceArray;
using testing::DeviceFloats;
using testing::Encode;
using ::testing::HasSubstr;
using testing::kAllThreadOrders;
using testing::Normal;
using testing::Rounding;
using testing::ThreadOrder;

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

struct Case {
  int64_t num_heads = 4, num_kv_heads = 2, head_dim = 64, block_size = 16;
  DType dtype = DType::kF32, cache_dtype = DType::kF32;
  bool alibi = false, sinks = false;
  float soft_cap = 0.0f;
  int32_t window = 0;
};

struct Lengths {
  int32_t context, query;
};

// One batch of sequences with its cache on a device. Whatever no query may read is NaN.
class Batch {
 public:
  Batch(Device& device, const Case& c, std::vector<Lengths> lengths)
      : device_(device), case_(c), lengths_(std::move(lengths)) {
    int32_t next_block = 0;
    for (const Lengths& sequence : lengths_) {
      starts_.push_back(starts_.back() + sequence.query);
      contexts_.push_back(sequence.context);
      std::vector<int32_t>& blocks = blocks_.emplace_back();
      for (int64_t t = 0; t < sequence.context; t += c.block_size) blocks.push_back(next_block++);
      max_blocks_ = std::max(max_blocks_, static_cast<int64_t>(blocks.size()));
    }
    // Last block first.
    for (std::vector<int32_t>& blocks : blocks_) {
      for (int32_t& block : blocks) block = next_block - 1 - block;
    }
    num_blocks_ = next_block;
    block_stride_ = 3 * 2 * c.num_kv_heads * c.block_size * c.head_dim;
    cache_.assign(static_cast<size_t>(num_blocks_ * block_stride_), std::nanf(""));
    for (size_t s = 0; s < lengths_.size(); ++s) {
      const std::vector<float> kv =
          Normal(10 + s, lengths_[s].context * 2 * c.num_kv_heads * c.head_dim);
      for (int64_t t = FirstKey(s); t < lengths_[s].context; ++t) {
        for (int64_t i = 0; i < 2 * c.num_kv_heads; ++i) {
          std::copy_n(kv.begin() + (t * 2 * c.num_kv_heads + i) * c.head_dim, c.head_dim,
                      cache_.begin() + RowOf(s, t, i));
        }
      }
    }
    cache_ = Decode(c.cache_dtype, Encode(c.cache_dtype, cache_));
    query_ = Normal(1, starts_.back() * c.num_heads * c.head_dim);
    query_ = Decode(c.dtype, Encode(c.dtype, query_));
    for (int64_t h = 0; h < c.num_heads; ++h) {
      slopes_.push_back(std::exp2(-static_cast<float>(h + 1)));
      sinks_.push_back(static_cast<float>(h) - 1.0f);
    }
  }

  std::vector<float> Run() {
    const int64_t num_tokens = starts_.back(), num_seqs = std::ssize(lengths_);
    std::vector<int32_t> table;
    for (std::vector<int32_t> blocks : blocks_) {
      blocks.resize(static_cast<size_t>(max_blocks_), 1 << 30);  // the unused tail is never read
      table.insert(table.end(), blocks.begin(), blocks.end());
    }
    DeviceFloats query(device_, case_.dtype, query_), cache(device_, case_.cache_dtype, cache_);
    DeviceFloats out(device_, case_.dtype, std::ssize(query_));
    DeviceFloats slopes(device_, DType::kF32, slopes_), sinks(device_, DType::kF32, sinks_);
    DeviceArray<int32_t> block_table(device_, table), contexts(device_, contexts_);
    DeviceArray<int32_t> starts(device_, starts_);
    PagedAttentionArgs args{
        .out = out.View({num_tokens, case_.num_heads, case_.head_dim}),
        .query = query.View({num_tokens, case_.num_heads, case_.head_dim}),
        .kv_cache =
            cache.View({num_blocks_, 2, case_.num_kv_heads, case_.block_size, case_.head_dim})
                .WithRowStride(block_stride_),
        .block_table = TensorView(block_table.data(), DType::kI32, {num_seqs, max_blocks_}),
        .context_lens = TensorView(contexts.data(), DType::kI32, {num_seqs}),
        .query_starts = TensorView(starts.data(), DType::kI32, {num_seqs + 1}),
        .scale = Scale(),
        .soft_cap = case_.soft_cap,
        .window = case_.window,
        .plan = &plan_};
    if (case_.alibi) args.alibi_slopes = slopes.View({case_.num_heads});
    if (case_.sinks) args.sinks = sinks.View({case_.num_heads});
    const absl::Status status = AttentionReference(device_, args);
    EXPECT_TRUE(status.ok()) << status;
    return out.ToHost();
  }

  void Check(const std::vector<float>& out) const {
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int64_t i = 0; i < lengths_[s].query; ++i) {
        for (int64_t head = 0; head < case_.num_heads; ++head) {
          const int64_t row = (starts_[s] + i) * case_.num_heads + head;
          CheckRow(s, lengths_[s].context - lengths_[s].query + i, head,
                   query_.data() + row * case_.head_dim, out.data() + row * case_.head_dim);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }

 private:
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(case_.head_dim)); }
  // That the first query of a sequence sees.
  int64_t FirstKey(size_t s) const {
    if (case_.window == 0) return 0;
    return std::max(0, lengths_[s].context - lengths_[s].query - case_.window + 1);
  }
  // `head`: K's heads, then V's.
  int64_t RowOf(size_t s, int64_t token, int64_t head) const {
    return blocks_[s][static_cast<size_t>(token / case_.block_size)] * block_stride_ +
           (head * case_.block_size + token % case_.block_size) * case_.head_dim;
  }

  void CheckRow(size_t s, int64_t position, int64_t head, const float* query,
                const float* got) const {
    const int64_t kv_head = head / (case_.num_heads / case_.num_kv_heads);
    const int64_t first = case_.window == 0 ? 0 : std::max<int64_t>(0, position - case_.window + 1);
    std::vector<double> weights;
    double score_bound = 0.0;
    for (int64_t key = first; key <= position; ++key) {
      const float* k = cache_.data() + RowOf(s, key, kv_head);
      double dot = 0.0, magnitude = 0.0;
      for (int64_t d = 0; d < case_.head_dim; ++d) {
        dot += double{query[d]} * k[d];
        magnitude += std::abs(double{query[d]} * k[d]);
      }
      double score = dot * Scale();
      double bound = static_cast<double>(case_.head_dim + 2) * kEpsilon * magnitude * Scale();
      if (case_.soft_cap > 0) {
        score = case_.soft_cap * std::tanh(score / case_.soft_cap);
        bound += 8 * kEpsilon * case_.soft_cap;
      }
      if (case_.alibi) {
        score += slopes_[static_cast<size_t>(head)] * static_cast<double>(key - position);
        bound += 2 * kEpsilon * std::abs(score);
      }
      score_bound = std::max(score_bound, bound + kEpsilon * std::abs(score));
      weights.push_back(score);
    }
    double maximum = *std::max_element(weights.begin(), weights.end());
    const double sink = sinks_[static_cast<size_t>(head)];
    if (case_.sinks) maximum = std::max(maximum, sink);
    double sum = case_.sinks ? std::exp(sink - maximum) : 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - maximum);
    for (int64_t d = 0; d < case_.head_dim; ++d) {
      double want = 0.0, magnitude = 0.0;
      for (size_t i = 0; i < weights.size(); ++i) {
        const float v = cache_[static_cast<size_t>(
            RowOf(s, first + static_cast<int64_t>(i), case_.num_kv_heads + kv_head) + d)];
        want += weights[i] / sum * v;
        magnitude += weights[i] / sum * std::abs(v);
      }
      // Every weight and the sum are off by the relative error of e^x: that of the score, and what
      // e^x, rescaling by tiles of 32 and adding the keys one after another round.
      const double relative =
          2 * score_bound + (1.1 * static_cast<double>(weights.size()) + 32) * kEpsilon;
      ASSERT_NEAR(got[d], want,
                  2 * relative * magnitude + 1.01 * Rounding(case_.dtype) * std::abs(want) + 1e-7)
          << "sequence " << s << " position " << position << " head " << head << " d " << d;
    }
  }

  Device& device_;
  const Case case_;
  const std::vector<Lengths> lengths_;
  std::vector<int32_t> contexts_, starts_ = {0};
  std::vector<std::vector<int32_t>> blocks_;
  int64_t max_blocks_ = 1, num_blocks_ = 0, block_stride_ = 0;
  std::vector<float> query_, cache_, slopes_, sinks_;
  const AttentionPlan plan_;
};

class AttentionReferenceTest : public ::testing::TestWithParam<ThreadOrder> {};
INSTANTIATE_TEST_SUITE_P(Orders, AttentionReferenceTest, ::testing::ValuesIn(kAllThreadOrders));

// A whole prompt, a chunk in the middle of one, an empty query, decodes at the edges of a tile.
const std::vector<Lengths> kMixed = {{37, 37}, {70, 9}, {5, 0}, {1, 1}, {32, 1}, {33, 1}, {100, 2}};

TEST_P(AttentionReferenceTest, AgreesWithDoubles) {
  const Case cases[] = {
      {},
      {.num_heads = 6, .num_kv_heads = 1, .head_dim = 8, .block_size = 5},
      {.num_heads = 3, .num_kv_heads = 3, .head_dim = 40, .block_size = 128},
      {.num_heads = 2, .num_kv_heads = 1, .head_dim = 256, .block_size = 1},
      {.dtype = DType::kBF16, .cache_dtype = DType::kBF16, .alibi = true},
      {.dtype = DType::kF16, .cache_dtype = DType::kF16, .soft_cap = 5.0f, .window = 20},
      {.dtype = DType::kBF16, .cache_dtype = DType::kF32, .sinks = true, .window = 33},
      {.head_dim = 72, .cache_dtype = DType::kF16, .alibi = true, .sinks = true, .window = 7},
      {.cache_dtype = DType::kBF16, .alibi = true, .soft_cap = 2.0f},
  };
  const auto device = testing::MakeDevice(GetParam());
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    Batch batch(*device, c, kMixed);
    batch.Check(batch.Run());
  }
}

TEST(AttentionReferenceRefusalTest, NamesWhatItCannotDo) {
  const auto device = testing::MakeDevice();
  DeviceFloats x(*device, DType::kF32, Normal(1, 512));
  DeviceArray<int32_t> index(*device, std::vector<int32_t>{0, 1});
  const AttentionPlan plan;
  PagedAttentionArgs args{.out = x.View({1, 2, 8}),
                          .query = x.View({1, 2, 8}),
                          .kv_cache = x.View({1, 2, 1, 4, 8}).WithRowStride(66),
                          .block_table = TensorView(index.data(), DType::kI32, {1, 1}),
                          .context_lens = TensorView(index.data() + 1, DType::kI32, {1}),
                          .query_starts = TensorView(index.data(), DType::kI32, {2}),
                          .scale = 1.0f,
                          .plan = &plan};
  const auto message = [&] { return std::string(AttentionReference(*device, args).message()); };
  EXPECT_THAT(message(), HasSubstr("want blocks a multiple of 16 bytes apart, got 66 elements"));
  args.kv_cache = x.View({1, 2, 1, 4, 8});
  args.alibi_slopes = x.View({3});
  EXPECT_THAT(message(), HasSubstr("alibi_slopes: want f32 [2], got f32 [3]"));
  args.alibi_slopes = TensorView();
  args.out = args.query = x.View({1, 2, 12});
  EXPECT_THAT(message(), HasSubstr("head_dim a multiple of 8, at most 256, got 12"));
}

}  // namespace
}  // namespace quire::kernels::cuda
