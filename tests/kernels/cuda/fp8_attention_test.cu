// Tests attention on tensor cores over a cache of e4m3. Float64 gets the numbers of the cache, so
// nothing but the kernel's own roundings is within the bound.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/quant/float8.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/paged_attention_testing.h"

namespace quire::testing {
namespace {

using kernels::AttentionPattern;
using kernels::DType;
using kernels::PagedAttentionArgs;
using kernels::TensorView;
using kernels::cuda::ForwardingDevice;
using kernels::cuda::KernelLaunch;
using kernels::cuda::MatrixInstruction;
using kernels::cuda::PagedAttentionOp;

constexpr int32_t kHeadDims[] = {64, 128, 256};
// Five entries, which share no factor with the numbers of head_dims and block_sizes.
constexpr int32_t kRowTiles[] = {1, 2, 4, 8, 8};
constexpr DType kQueryTypes[] = {DType::kBF16, DType::kF16};

AttentionCase WithFp8(AttentionCase c) {
  c.cache_dtype = DType::kF8E4M3;
  return c;
}

TEST(Fp8AttentionTest, ChosenCasesAgreeWithDoublesInEveryThreadOrder) {
  double worst = 0.0;
  for (const AttentionCase& c : ChosenAttentionCases()) {
    for (const DType dtype : kQueryTypes) {
      AttentionCase fp8 = WithFp8(c);
      fp8.dtype = dtype;
      SCOPED_TRACE(::testing::Message() << fp8);
      CheckInEveryOrder(fp8, {.worst = &worst});
      if (HasFailure()) return;
    }
  }
  std::printf("the worst error %.2f of its bound\n", worst);
}

TEST(Fp8AttentionTest, AnyMixOfFeaturesAgreesWithDoublesOnEveryKernel) {
  constexpr uint64_t kCases = QUIRE_RANDOM_CASES;
  double worst = 0.0;
  int32_t num_fixed = 0;
  std::set<std::tuple<DType, int32_t, int32_t>> sizes_seen;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const auto [random, pinned] = RandomAttentionCase(seed, kHeadDims, kRowTiles);
    const AttentionCase c = WithScales(random, SomeCacheScales(seed / 2));
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << c);
    const AttentionAnswer answer = CheckInEveryOrder(c, {.seed = seed, .worst = &worst});
    for (const int32_t row_tiles : answer.row_tiles) {
      sizes_seen.insert({c.dtype, c.head_dim, row_tiles});
    }
    if (c.fixed_split_keys > 0) {
      ++num_fixed;
      CheckSameAlone(c, pinned, answer, {.seed = seed});
    }
    if (HasFailure()) return;
  }
  std::printf("%d cases, %d with a fixed split, of %d sizes, the worst error %.2f of its bound\n",
              static_cast<int>(kCases), num_fixed, static_cast<int>(sizes_seen.size()), worst);
  EXPECT_GT(num_fixed, 0);
  if (kCases < 60) return;
  EXPECT_EQ(sizes_seen.size(), 20u);  // as many as resources.tsv lists
}

TEST(Fp8AttentionTest, WideItemsWithEveryFeatureAgreeWithDoubles) {
  double worst = 0.0;
  for (const AttentionCase& wide : WideAttentionCases(std::vector{64, 128})) {
    const AttentionCase c = WithScales(wide, {0.0037f, 0.23f});
    SCOPED_TRACE(::testing::Message() << c);
    EXPECT_TRUE(CheckInEveryOrder(c, {.worst = &worst}).row_tiles.contains(8));
    if (HasFailure()) return;
  }
  std::printf("the worst error %.2f of its bound\n", worst);
}

class SharedMemoryLog final : public ForwardingDevice {
 public:
  SharedMemoryLog() : ForwardingDevice(MakeDevice()) {}
  int64_t first_launch = 0;  // bytes

  absl::Status LaunchKernel(const KernelLaunch& launch) override {
    if (first_launch == 0) first_launch = launch.config.shared_bytes;
    return ForwardingDevice::LaunchKernel(launch);
  }
};

// A decode has as many blocks on a multiprocessor as its own memory allows.
TEST(Fp8AttentionTest, OnlyStepsWithWideItemsTakeTheirMemory) {
  const auto bytes_of = [](int32_t context, int32_t query) {
    const AttentionCase c = WithFp8(
        {.sequences = {{context, query}}, .num_heads = 1, .num_kv_heads = 1, .head_dim = 128});
    SharedMemoryLog device;
    Attend(device, c, AttentionBatch(c));
    return device.first_launch;
  };
  EXPECT_EQ(bytes_of(200, 1), 48 << 10);
  EXPECT_EQ(bytes_of(200, 64), 48 << 10);
  EXPECT_EQ(bytes_of(200, 65), 80 << 10);
}

// Most elements are below the normal numbers of e4m3 in the first cases, and the largest are at its
// end in the others. The scale makes the scores as large as usual.
TEST(Fp8AttentionTest, TheSmallestAndTheLargestNumbersAgreeWithDoubles) {
  for (const DType dtype : kQueryTypes) {
    for (const float deviation : {0x1p-8f, 160.0f}) {
      for (const int32_t num_heads : {1, 20, 64}) {  // on each number of row tiles
        const AttentionCase c = WithFp8({.sequences = {{150, 1}, {70, 2}},
                                         .num_heads = num_heads,
                                         .head_dim = 128,
                                         .dtype = dtype,
                                         .scale = 0.1f / deviation,
                                         .cache_deviation = deviation});
        SCOPED_TRACE(::testing::Message() << c);
        CheckInEveryOrder(c);
      }
    }
  }
}

// The output is in range of bf16 with any scale, and in that of f16 with small ones.
TEST(Fp8AttentionTest, TheSmallestAndTheLargestScalesAgreeWithDoubles) {
  using kernels::CacheScales;
  for (const CacheScales& scales : {CacheScales{CacheScales::kSmallest, CacheScales::kSmallest},
                                    {CacheScales::kLargest, CacheScales::kLargest}}) {
    for (const DType dtype : kQueryTypes) {
      AttentionCase c = WithScales({.sequences = {{150, 1}, {70, 2}},
                                    .num_heads = 20,
                                    .head_dim = 128,
                                    .dtype = dtype,
                                    .alibi = true,
                                    .sinks = true},
                                   scales);
      if (dtype == DType::kF16) c.cache_scales.v = 1.0f;
      SCOPED_TRACE(::testing::Message() << c);
      CheckInEveryOrder(c);
      c.soft_cap = 2.0f;
      CheckInEveryOrder(c);
    }
  }
}

// Two sequences of one KV head, and their tensors on a device. Tests change single bytes.
class OneKvHead {
 public:
  static constexpr int64_t kHeadDim = 64;

  OneKvHead(DType dtype, int32_t num_heads, std::vector<AttentionSequence> sequences,
            MatrixInstruction prefill)
      : prefill_(prefill),
        case_(WithFp8({.sequences = std::move(sequences),
                       .num_heads = num_heads,
                       .head_dim = kHeadDim,
                       .dtype = dtype})),
        batch_(case_),
        device_(MakeDevice()),
        on_device_(*device_, batch_) {}

  // Sets element `d` of a key or a value of sequence `seq`.
  void Set(bool is_key, int64_t seq, int64_t key, int64_t d, uint8_t code) {
    const kernels::CacheView& cache = on_device_.args.kv_cache;
    const TensorView& table = on_device_.args.block_table;
    const int32_t block =
        on_device_.block_table.ToHost()[static_cast<size_t>(seq * table.dim(1) + key / 16)];
    uint8_t* const part = (is_key ? cache.keys : cache.values).data<uint8_t>();
    ASSERT_TRUE(
        device_
            ->CopyToDevice(part + block * cache.block_stride() + key % 16 * kHeadDim + d, &code, 1)
            .ok());
    ASSERT_TRUE(device_->Synchronize().ok());
  }

  // Returns the output, [tokens, num_heads, kHeadDim].
  std::vector<float> Attend() {
    PagedAttentionOp op(*device_, {}, prefill_);
    const auto plan = op.Plan(batch_.PlanArgs());
    EXPECT_TRUE(plan.ok()) << plan.status();
    on_device_.args.plan = *plan;
    const absl::Status status = op.Run(on_device_.args);
    EXPECT_TRUE(status.ok()) << status;
    return on_device_.out.ToHost();
  }
  std::vector<float> RowsOf(size_t seq, const std::vector<float>& out) const {
    return batch_.RowsOf(seq, out);
  }

 private:
  const MatrixInstruction prefill_;
  const AttentionCase case_;
  const AttentionBatch batch_;
  const std::unique_ptr<kernels::cuda::Device> device_;
  AttentionOnDevice on_device_;
};

// A kernel that reads a cache of e4m3, as the heads and queries of a step choose it.
struct Fp8Kernel {
  int32_t num_heads, num_queries;
  MatrixInstruction prefill = MatrixInstruction::kMma;
};

class Fp8KernelTest : public ::testing::TestWithParam<Fp8Kernel> {
 protected:
  void SetUp() override {
    if (!HasInstruction(MakeDevice()->info(), GetParam().prefill)) {
      GTEST_SKIP() << "needs compute capability 9.0";
    }
  }
};

// Items of 1, 2, 4 and 8 row tiles, and prompts on wgmma. bench/gpu/run_all.sh names the last one
// by its index.
INSTANTIATE_TEST_SUITE_P(Kernels, Fp8KernelTest,
                         ::testing::Values(Fp8Kernel{4, 1}, Fp8Kernel{20, 1}, Fp8Kernel{64, 1},
                                           Fp8Kernel{64, 2},
                                           Fp8Kernel{64, 2, MatrixInstruction::kWgmma}));

// The first query, which sees one key, gives that key's value, to the bit.
TEST_P(Fp8KernelTest, EveryNumberOfAValueIsExact) {
  const auto [num_heads, num_queries, prefill] = GetParam();
  for (const DType dtype : kQueryTypes) {
    OneKvHead tensors(dtype, num_heads, {{num_queries, num_queries}}, prefill);
    for (int first = 0; first < 256; first += OneKvHead::kHeadDim) {
      for (int d = 0; d < OneKvHead::kHeadDim; ++d) {
        const auto code = static_cast<uint8_t>(first + d);
        const bool is_nan = (code & 0x7f) == 0x7f;
        tensors.Set(/*is_key=*/false, 0, 0, d, is_nan ? uint8_t{0} : code);
      }
      std::vector<float> out = tensors.Attend();
      out.resize(out.size() / static_cast<size_t>(num_queries));
      for (size_t i = 0; i < out.size(); ++i) {
        const auto code = static_cast<uint8_t>(first + static_cast<int>(i) % OneKvHead::kHeadDim);
        const bool is_nan = (code & 0x7f) == 0x7f;
        ASSERT_EQ(out[i], is_nan ? 0.0f : kernels::E4M3ToF32(code)) << i;
      }
    }
  }
}

bool AnyNan(std::span<const float> values) {
  return std::ranges::any_of(values, [](float x) { return std::isnan(x); });
}
bool EachHeadHasNan(std::span<const float> values) {
  for (; !values.empty(); values = values.subspan(OneKvHead::kHeadDim)) {
    if (!AnyNan(values.first(OneKvHead::kHeadDim))) return false;
  }
  return true;
}

// A NaN among the keys or the values that a sequence sees must reach its output, because the engine
// looks for the cause of NaN among logits, and must not reach another sequence.
TEST_P(Fp8KernelTest, NanOfAKeyOrAValueReachesTheRowsThatSeeIt) {
  const auto [num_heads, num_queries, prefill] = GetParam();
  for (const DType dtype : kQueryTypes) {
    for (const bool is_key : {true, false}) {
      for (const uint8_t nan : {uint8_t{0x7f}, uint8_t{0xff}}) {
        // Keys in both halves of 16, and elements in both halves of 32.
        for (const auto& [key, d] : {std::pair(0, 3), {9, 20}, {70, 45}, {77, 2}, {149, 22}}) {
          OneKvHead tensors(dtype, num_heads, {{150, num_queries}, {90, 3}}, prefill);
          EXPECT_FALSE(AnyNan(tensors.Attend()));
          tensors.Set(is_key, 0, key, d, nan);
          const std::vector<float> out = tensors.Attend();
          const std::vector<float> rows = tensors.RowsOf(0, out);
          // It sees all keys.
          const auto last_query =
              std::span(rows).last(rows.size() / static_cast<size_t>(num_queries));
          ASSERT_TRUE(EachHeadHasNan(last_query)) << is_key << " " << key;
          ASSERT_FALSE(AnyNan(tensors.RowsOf(1, out)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing
