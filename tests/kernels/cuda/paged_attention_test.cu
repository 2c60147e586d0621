#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/alibi_slopes.h"
#include "kernels/cuda/paged_attention.h"
#include "kernels/float16.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::testing {
namespace {

using kernels::AttentionPlan;
using kernels::DType;
using kernels::PagedAttentionArgs;
using kernels::TensorView;
using kernels::cuda::Device;
using kernels::cuda::PagedAttentionOp;
using ::testing::HasSubstr;

struct Case {
  std::vector<int32_t> context_lens;
  std::vector<int32_t> query_lens;
  int32_t num_heads = 4, num_kv_heads = 1, head_dim = 64, block_size = 16;
  DType dtype = DType::kBF16;
  int32_t window = 0;
  float soft_cap = 0.0f;
  bool alibi = false, sinks = false, fixed_split = false;
  bool second_half = false;  // of the heads of a model twice as wide, as a tensor parallel rank has
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  const auto list = [](const std::vector<int32_t>& values) {
    std::string text;
    for (const int32_t value : values) text += std::to_string(value) + " ";
    return text;
  };
  return out << "contexts " << list(c.context_lens) << "queries " << list(c.query_lens) << "heads "
             << c.num_heads << "/" << c.num_kv_heads << " of " << c.head_dim << ", block_size "
             << c.block_size << ", " << Name(c.dtype) << ", window " << c.window << ", soft_cap "
             << c.soft_cap << ", alibi " << c.alibi << ", sinks " << c.sinks << ", fixed_split "
             << c.fixed_split << ", second_half " << c.second_half;
}

float Load(DType dtype, uint16_t bits) {
  return dtype == DType::kBF16 ? kernels::Bf16ToF32(bits) : kernels::F16ToF32(bits);
}
uint16_t Store(DType dtype, float value) {
  return dtype == DType::kBF16 ? kernels::F32ToBf16(value) : kernels::F32ToF16(value);
}
// Half the largest distance of neighbouring numbers, relative: of 8 bits and of 11.
double Rounding(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11; }

std::vector<uint16_t> Normal(DType dtype, int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& value : values) value = Store(dtype, normal(engine));
  return values;
}

// A batch with everything the op needs, on a device. Blocks lie scattered and apart; every slot
// that holds no token, and what lies between blocks, is NaN.
class Batch {
 public:
  Batch(Device& device, const Case& c, uint64_t seed = 1) : device_(device), c_(c) {
    const auto num_seqs = static_cast<int64_t>(c.context_lens.size());
    starts_ = {0};
    for (const int32_t query_len : c.query_lens) starts_.push_back(starts_.back() + query_len);
    query_ = Normal(c.dtype, int64_t{starts_.back()} * c.num_heads * c.head_dim, seed);
    const int64_t head_elements = int64_t{c.block_size} * c.head_dim;
    value_offset_ = c.num_kv_heads * head_elements;
    block_stride_ = 3 * value_offset_;
    for (const int32_t length : c.context_lens) {
      max_blocks_ = std::max<int64_t>(max_blocks_, (length + c.block_size - 1) / c.block_size);
    }
    const int64_t num_blocks = num_seqs * max_blocks_;
    table_.assign(static_cast<size_t>(num_blocks), 1 << 30);  // the unused tail is never read
    kv_.assign(static_cast<size_t>(num_blocks * block_stride_), 0xffff);
    for (int64_t seq = 0; seq < num_seqs; ++seq) {
      const int32_t length = c.context_lens[static_cast<size_t>(seq)];
      const std::vector<uint16_t> rows =
          Normal(c.dtype, int64_t{length} * 2 * c.num_kv_heads * c.head_dim,
                 seed + 100 + static_cast<uint64_t>(length));
      for (int32_t t = 0; t < length; ++t) {
        const int64_t i = t / c.block_size;
        table_[static_cast<size_t>(seq * max_blocks_ + i)] =
            static_cast<int32_t>((max_blocks_ - 1 - i) * num_seqs + seq);
        for (int64_t part = 0; part < 2 * c.num_kv_heads; ++part) {
          std::copy_n(rows.begin() + (t * 2 * c.num_kv_heads + part) * c.head_dim, c.head_dim,
                      kv_.begin() + At(seq, t, part));
        }
      }
    }
    for (int32_t h = 0; h < c.num_heads; ++h) sinks_.push_back(static_cast<float>(h % 5) - 1.0f);
    slopes_ = kernels::AlibiSlopes(c.second_half ? 2 * c.num_heads : c.num_heads);
    if (c.second_half) slopes_.erase(slopes_.begin(), slopes_.begin() + c.num_heads);
  }

  // Runs the op and returns its output, NaN where it wrote nothing.
  std::vector<uint16_t> Run() {
    DeviceArray<uint16_t> query(device_, query_), kv(device_, kv_);
    DeviceArray<uint16_t> out(device_, static_cast<int64_t>(query_.size()));
    DeviceArray<int32_t> table(device_, table_), context_lens(device_, c_.context_lens),
        starts(device_, starts_);
    DeviceArray<float> slopes(device_, slopes_), sinks(device_, sinks_);
    PagedAttentionOp op(device_, {.fixed_split = c_.fixed_split});
    const auto plan = op.Plan({.context_lens = c_.context_lens,
                               .query_lens = c_.query_lens,
                               .num_heads = c_.num_heads,
                               .num_kv_heads = c_.num_kv_heads,
                               .head_dim = c_.head_dim,
                               .window = c_.window});
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    if (!plan.ok()) return {};
    num_merges_ = static_cast<const kernels::cuda::CudaAttentionPlan*>(*plan)->merges().size();
    const auto num_seqs = static_cast<int64_t>(c_.context_lens.size());
    const int64_t tokens = starts_.back();
    PagedAttentionArgs args;
    args.out = TensorView(out.data(), c_.dtype, {tokens, c_.num_heads, c_.head_dim});
    args.query = TensorView(query.data(), c_.dtype, {tokens, c_.num_heads, c_.head_dim});
    args.kv_cache = TensorView(kv.data(), c_.dtype,
                               {static_cast<int64_t>(kv_.size()) / block_stride_, 2,
                                c_.num_kv_heads, c_.block_size, c_.head_dim})
                        .WithRowStride(block_stride_);
    args.block_table = TensorView(table.data(), DType::kI32, {num_seqs, max_blocks_});
    args.context_lens = TensorView(context_lens.data(), DType::kI32, {num_seqs});
    args.query_starts = TensorView(starts.data(), DType::kI32, {num_seqs + 1});
    if (c_.alibi) args.alibi_slopes = TensorView(slopes.data(), DType::kF32, {c_.num_heads});
    if (c_.sinks) args.sinks = TensorView(sinks.data(), DType::kF32, {c_.num_heads});
    args.scale = Scale();
    args.soft_cap = c_.soft_cap;
    args.window = c_.window;
    args.plan = *plan;
    const absl::Status status = op.Run(args);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return out.ToHost();
  }
  size_t num_merges() const { return num_merges_; }
  double worst() const { return worst_; }

  // Every row against float64, within what rounding may do. The largest error, as a share of its
  // bound, goes to worst().
  void Check(const std::vector<uint16_t>& out) {
    ASSERT_EQ(out.size(), query_.size());
    for (size_t seq = 0; seq < c_.context_lens.size(); ++seq) {
      for (int32_t i = 0; i < c_.query_lens[seq]; ++i) {
        for (int32_t h = 0; h < c_.num_heads; ++h) {
          ASSERT_NO_FATAL_FAILURE(CheckRow(static_cast<int64_t>(seq), i, h, out));
        }
      }
    }
  }

 private:
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(c_.head_dim)); }
  // Of one row; `part` is the kv head, the values' after the keys'.
  int64_t At(int64_t seq, int64_t key, int64_t part) const {
    const int64_t block = table_[static_cast<size_t>(seq * max_blocks_ + key / c_.block_size)];
    return block * block_stride_ + (part * c_.block_size + key % c_.block_size) * c_.head_dim;
  }

  void CheckRow(int64_t seq, int32_t i, int32_t head, const std::vector<uint16_t>& out) {
    const int32_t query_len = c_.query_lens[static_cast<size_t>(seq)];
    const int64_t position = c_.context_lens[static_cast<size_t>(seq)] - query_len + i;
    const int64_t first = c_.window == 0 ? 0 : std::max<int64_t>(0, position - c_.window + 1);
    const int64_t kv_head = head / (c_.num_heads / c_.num_kv_heads);
    const int64_t row = (int64_t{starts_[static_cast<size_t>(seq)]} + i) * c_.num_heads + head;
    const auto value = [&](const std::vector<uint16_t>& of, int64_t at) {
      return double{Load(c_.dtype, of[static_cast<size_t>(at)])};
    };
    std::vector<double> weights;
    double maximum = c_.sinks ? double{sinks_[static_cast<size_t>(head)]} : -1e30;
    double score_error = 0.0;
    constexpr double kEpsilon = 0x1p-23;  // of one operation in float32, approximate ones included
    for (int64_t key = first; key <= position; ++key) {
      double dot = 0.0, magnitude = 0.0;
      for (int64_t d = 0; d < c_.head_dim; ++d) {
        const double product =
            value(query_, row * c_.head_dim + d) * value(kv_, At(seq, key, kv_head) + d);
        dot += product;
        magnitude += std::abs(product);
      }
      double score = dot * Scale();
      double error = (c_.head_dim + 2) * kEpsilon * magnitude * Scale();
      if (c_.soft_cap > 0.0f) {
        score = c_.soft_cap * std::tanh(score / c_.soft_cap);
        error += 16 * kEpsilon * c_.soft_cap;
      }
      if (c_.alibi)
        score += slopes_[static_cast<size_t>(head)] * static_cast<double>(key - position);
      error += 4 * kEpsilon * std::abs(score);
      // What a far key is off by matters as little as the key.
      if (score > maximum - 40.0) score_error = std::max(score_error, error);
      maximum = std::max(maximum, score);
      weights.push_back(score);
    }
    double sum = c_.sinks ? std::exp(sinks_[static_cast<size_t>(head)] - maximum) : 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - maximum);
    for (int64_t d = 0; d < c_.head_dim; ++d) {
      double want = 0.0, magnitude = 0.0;
      for (size_t j = 0; j < weights.size(); ++j) {
        const double v =
            value(kv_, At(seq, first + static_cast<int64_t>(j), c_.num_kv_heads + kv_head) + d);
        want += weights[j] / sum * v;
        magnitude += weights[j] / sum * std::abs(v);
      }
      // Each weight is rounded once to the dtype, and so is the output. Weights and their sum are
      // off by what the scores are, and by float32's sums and e^x. f16 weights lose digits below
      // its smallest normal number: half of 2^-24 each, before they are divided by at least 1.
      const double subnormal = c_.dtype == DType::kF16 ? 0x1p-25 * 4 * weights.size() : 0.0;
      const double relative = Rounding(c_.dtype) + 2 * score_error +
                              static_cast<double>(weights.size() + 64) * kEpsilon;
      const double bound =
          relative * magnitude + Rounding(c_.dtype) * std::abs(want) + subnormal + 1e-7;
      const double got = value(out, row * c_.head_dim + d);
      ASSERT_NEAR(got, want, bound)
          << "sequence " << seq << " query " << i << " head " << head << " d " << d;
      worst_ = std::max(worst_, std::abs(got - want) / bound);
    }
  }

  Device& device_;
  const Case c_;
  std::vector<int32_t> starts_, table_;
  std::vector<uint16_t> query_, kv_;
  std::vector<float> slopes_, sinks_;
  int64_t value_offset_ = 0, block_stride_ = 0, max_blocks_ = 1;
  size_t num_merges_ = 0;
  double worst_ = 0.0;
};

class CudaPagedAttentionTest : public ::testing::TestWithParam<Case> {};

TEST_P(CudaPagedAttentionTest, AgreesWithDoublesInEveryThreadOrder) {
  std::vector<uint16_t> first;
  for (const ThreadOrder order : kAllThreadOrders) {
    const auto device = MakeDevice(order);
    Batch batch(*device, GetParam());
    const std::vector<uint16_t> out = batch.Run();
    if (first.empty()) {
      first = out;
      batch.Check(out);
    }
    ASSERT_EQ(out, first) << "thread order " << static_cast<int>(order);
  }
}

INSTANTIATE_TEST_SUITE_P(
    HeadDims, CudaPagedAttentionTest,
    ::testing::Values(Case{{70, 30}, {2, 30}, 2, 1, 32, 16, DType::kBF16, 0, 0.0f, true},
                      Case{{70, 30}, {2, 30}, 2, 1, 80, 16, DType::kF16, 0, 0.0f, true},
                      Case{{70, 30}, {2, 30}, 2, 1, 96, 16, DType::kBF16, 0, 0.0f, true},
                      Case{{70, 30}, {2, 30}, 2, 1, 112, 16, DType::kF16, 0, 0.0f, true},
                      Case{{70, 30}, {2, 30}, 2, 1, 256, 16, DType::kBF16, 0, 0.0f, true}));

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaPagedAttentionTest,
    ::testing::Values(
        Case{{1, 15, 16, 17, 300}, {1, 1, 1, 1, 1}},  // ragged; the long one is cut
        Case{{200, 3}, {1, 1}, 8, 2, 128, 32, DType::kF16}, Case{{130}, {1}, 2, 2, 64, 64},  // MHA
        Case{{70, 40}, {1, 3}, 3, 1, 64, 128, DType::kF16},  // GQA of 3; a speculative decode
        Case{{90}, {1}, 32, 1, 64, 16},                      // two row tiles
        Case{{300, 20}, {1, 1}, 8, 1, 128, 16, DType::kBF16, 0, 0.0f, true},
        Case{{400, 65}, {1, 1}, 4, 1, 64, 16, DType::kBF16, 100},
        Case{{300, 1}, {1, 1}, 4, 1, 64, 16, DType::kF16, 0, 0.0f, false, true},
        Case{{80}, {1}, 4, 1, 64, 16, DType::kBF16, 0, 2.0f},
        // A prompt, a chunk of one, a decode, in one step.
        Case{{70, 140, 33}, {70, 40, 1}, 4, 2, 64, 16, DType::kBF16},
        Case{{90, 17}, {90, 1}, 4, 2, 128, 16, DType::kBF16, 37, 30.0f, true, true},
        Case{{1100}, {1}, 4, 1, 64, 16, DType::kBF16, 0, 0.0f, true, false, true}));

template <typename T>
T Pick(std::mt19937_64& engine, std::initializer_list<T> values) {
  return values.begin()[std::uniform_int_distribution<size_t>(0, values.size() - 1)(engine)];
}

Case RandomCase(uint64_t seed) {
  std::mt19937_64 engine(seed);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine);
  };
  const auto often = [&] { return between(0, 2) == 0; };
  Case c;
  c.num_kv_heads = between(1, 2);
  c.num_heads = c.num_kv_heads * Pick(engine, {1, 2, 3, 4, 5, 8, 16, 17, 32, 64, 71});
  c.head_dim = Pick(engine, {32, 64, 80, 96, 112, 128, 256});
  c.block_size = Pick(engine, {16, 32, 64, 128});
  c.dtype = Pick(engine, {DType::kBF16, DType::kF16});
  if (often()) c.window = between(1, 120);
  if (often()) c.soft_cap = Pick(engine, {2.0f, 30.0f});
  c.alibi = often() || often();
  c.sinks = often();
  c.fixed_split = often();
  c.second_half = often();
  // Wide groups make many rows of few queries.
  const int32_t most_queries = std::max(1, 96 / (c.num_heads / c.num_kv_heads));
  for (int32_t seqs = between(1, 3); seqs > 0; --seqs) {
    const int32_t context = Pick(engine, {between(1, 40), between(1, 40), between(60, 260)});
    c.context_lens.push_back(context);
    c.query_lens.push_back(often() ? 1 : between(1, std::min(context, most_queries)));
  }
  return c;
}

TEST(CudaPagedAttentionBatchTest, AnyMixOfFeaturesAgreesWithDoubles) {
  constexpr uint64_t kCases = QUIRE_RANDOM_CASES;
  double worst = 0.0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << c);
    const auto device = MakeDevice(kAllThreadOrders[seed % 3], seed);
    Batch batch(*device, c);
    batch.Check(batch.Run());
    if (HasFatalFailure()) return;
    worst = std::max(worst, batch.worst());
  }
  std::printf("%d cases, the worst error %.2f of its bound\n", static_cast<int>(kCases), worst);
}

TEST(CudaPagedAttentionBatchTest, SplitsAreMerged) {
  const auto device = MakeDevice();
  Batch batch(*device, {.context_lens = {1, 15, 16, 17, 300}, .query_lens = {1, 1, 1, 1, 1}});
  batch.Run();
  EXPECT_GT(batch.num_merges(), 0);
}

TEST(CudaPagedAttentionBatchTest, WithAFixedSplitBitsDoNotDependOnTheBatch) {
  const auto device = MakeDevice();
  Case alone{.context_lens = {1100}, .query_lens = {1}, .alibi = true, .fixed_split = true};
  Case crowd = alone;
  crowd.context_lens = {1100, 50, 333};
  crowd.query_lens = {1, 20, 1};
  Batch one(*device, alone), many(*device, crowd);
  const std::vector<uint16_t> want = one.Run();
  std::vector<uint16_t> got = many.Run();
  EXPECT_GT(one.num_merges(), 0);
  got.resize(want.size());
  EXPECT_EQ(got, want);
}

// A cache of 9 GiB, of which the kernel touches a few blocks: an offset of 32 bits would miss them.
TEST(CudaPagedAttentionBatchTest, ReadsBlocksBeyondTwoToThe31Elements) {
  constexpr int64_t kElements = int64_t{1} << 32;
  constexpr int64_t kBlockElements = 2 * 16 * 64;
  const auto device = MakeDevice();
  DeviceArray<uint16_t> kv(*device, kElements + 2 * kBlockElements);
  const std::vector<uint16_t> keys(16 * 64, 0);  // every key weighs the same
  std::vector<uint16_t> near(16 * 64), far(16 * 64);
  for (size_t i = 0; i < near.size(); ++i) {
    near[i] = kernels::F32ToBf16(1.0f);
    far[i] = kernels::F32ToBf16(3.0f);
  }
  const std::vector<int32_t> blocks = {1, static_cast<int32_t>(kElements / kBlockElements)};
  for (size_t i = 0; i < blocks.size(); ++i) {
    uint16_t* const block = kv.data() + blocks[i] * kBlockElements;
    const std::vector<uint16_t>& values = i == 0 ? near : far;
    ASSERT_TRUE(device->CopyToDevice(block, keys.data(), 2 * 16 * 64).ok());
    ASSERT_TRUE(device->CopyToDevice(block + 16 * 64, values.data(), 2 * 16 * 64).ok());
  }
  const std::vector<int32_t> context = {32}, query_len = {1};
  DeviceArray<uint16_t> query(*device, Normal(DType::kBF16, 64, 1)), out(*device, 64);
  DeviceArray<int32_t> table(*device, blocks), context_lens(*device, context),
      starts(*device, std::vector<int32_t>{0, 1});
  PagedAttentionOp op(*device);
  const auto plan = op.Plan({.context_lens = context,
                             .query_lens = query_len,
                             .num_heads = 1,
                             .num_kv_heads = 1,
                             .head_dim = 64});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  PagedAttentionArgs args;
  args.out = TensorView(out.data(), DType::kBF16, {1, 1, 64});
  args.query = TensorView(query.data(), DType::kBF16, {1, 1, 64});
  args.kv_cache =
      TensorView(kv.data(), DType::kBF16, {kElements / kBlockElements + 1, 2, 1, 16, 64});
  args.block_table = TensorView(table.data(), DType::kI32, {1, 2});
  args.context_lens = TensorView(context_lens.data(), DType::kI32, {1});
  args.query_starts = TensorView(starts.data(), DType::kI32, {2});
  args.scale = 1.0f;
  args.plan = *plan;
  const absl::Status status = op.Run(args);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_THAT(out.ToHost(), ::testing::Each(kernels::F32ToBf16(2.0f)));
}

class PagedAttentionErrorTest : public ::testing::Test {
 protected:
  // Nothing is launched, so the memory may be any.
  PagedAttentionErrorTest() {
    const std::vector<int32_t> context = {40}, query = {1};
    const auto plan = op_.Plan({.context_lens = context,
                                .query_lens = query,
                                .num_heads = 4,
                                .num_kv_heads = 2,
                                .head_dim = 64});
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    args_.out = View(DType::kBF16, {1, 4, 64});
    args_.query = View(DType::kBF16, {1, 4, 64});
    args_.kv_cache = View(DType::kBF16, {8, 2, 2, 16, 64});
    args_.block_table = View(DType::kI32, {1, 3});
    args_.context_lens = View(DType::kI32, {1});
    args_.query_starts = View(DType::kI32, {2});
    args_.scale = 0.125f;
    args_.plan = *plan;
  }

  TensorView View(DType dtype, std::initializer_list<int64_t> shape) {
    return TensorView(memory_, dtype, shape);
  }
  void ExpectError(const PagedAttentionArgs& args, const std::string& message) {
    const absl::Status status = op_.Run(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_TRUE(device_->Synchronize().ok());
  }

  alignas(16) std::byte memory_[64] = {};
  const std::unique_ptr<Device> device_ = MakeDevice();
  PagedAttentionOp op_{*device_};
  PagedAttentionArgs args_;
};

TEST_F(PagedAttentionErrorTest, SaysWhatWantedGotBeforeAnythingIsLaunched) {
  PagedAttentionArgs bad = args_;
  bad.query = bad.out = View(DType::kF32, {1, 4, 64});
  ExpectError(bad,
              "query: want a dtype and head_dim with a tensor core kernel, got f32 [1, 4, 64]");
  bad = args_;
  bad.kv_cache = View(DType::kF16, {8, 2, 2, 16, 64});
  ExpectError(bad, "kv_cache: want the query's dtype and block_size 16|32|64|128, got f16");
  bad = args_;
  bad.kv_cache = View(DType::kBF16, {8, 2, 2, 24, 64});
  ExpectError(bad, "block_size 16|32|64|128, got bf16 [8, 2, 2, 24, 64]");
  bad = args_;
  bad.kv_cache = View(DType::kBF16, {8, 2, 3, 16, 64});
  ExpectError(bad, "num_heads a multiple of num_kv_heads = 3, got 4");
  bad = args_;
  bad.kv_cache = View(DType::kBF16, {8, 2, 1, 16, 64});
  ExpectError(bad, "got 1 sequences of 1 tokens, heads 4/2 of 64, window 0");
  bad = args_;
  bad.window = 5;
  ExpectError(bad, "window 5");
  bad = args_;
  bad.kv_cache = args_.kv_cache.WithRowStride(4100);
  ExpectError(bad, "kv_cache: want blocks a multiple of 16 bytes apart, got 4100 elements");
  bad = args_;
  bad.kv_cache = TensorView(memory_ + 8, DType::kBF16, {8, 2, 2, 16, 64});
  ExpectError(bad, "kv_cache: want memory at a multiple of 16 bytes, got 8 past one");
  bad = args_;
  bad.query = TensorView(memory_ + 2, DType::kBF16, {1, 4, 64});
  ExpectError(bad, "query: want memory at a multiple of 4 bytes, got 2 past one");
  bad = args_;
  bad.out = TensorView(memory_ + 4, DType::kBF16, {1, 4, 64});
  ExpectError(bad, "out: want memory at a multiple of 8 bytes, got 4 past one");
  bad = args_;
  bad.alibi_slopes = View(DType::kF32, {3});
  ExpectError(bad, "alibi_slopes: want f32 [4], got f32 [3]");
  bad = args_;
  bad.scale = std::nanf("");
  ExpectError(bad, "scale: want finite, got nan");
  bad = args_;
  bad.block_table = View(DType::kI32, {1, 2});
  ExpectError(bad, "block_table: want blocks for 40 tokens of sequence 0, got 32");
  bad = args_;
  const kernels::cuda::CudaAttentionPlan other;
  bad.plan = &other;
  ExpectError(bad, "plan: want one of the last two of Plan");
  EXPECT_FALSE(PagedAttentionOp::Supports(DType::kBF16, 72));
  const std::vector<int32_t> one = {1};
  EXPECT_EQ(op_.Plan({.context_lens = one,
                      .query_lens = one,
                      .num_heads = 1,
                      .num_kv_heads = 1,
                      .head_dim = 72})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire::testing
