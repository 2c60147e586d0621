// Tests attention on tensor cores over a cache of e4m3. Float64 gets the numbers of the cache, so
// nothing but the kernel's own roundings is within the bound.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/quant/float8.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/paged_attention_testing.h"

namespace quire::testing {
namespace {

using kernels::AttentionPattern;
using kernels::DType;
using kernels::PagedAttentionArgs;
using kernels::TensorView;
using kernels::cuda::MatrixInstruction;
using kernels::cuda::PagedAttentionOp;

constexpr int32_t kHeadDims[] = {64, 128, 256};
constexpr int32_t kRowTiles[] = {1, 2, 4};
constexpr DType kQueryTypes[] = {DType::kBF16, DType::kF16};

AttentionCase WithFp8(AttentionCase c) {
  c.cache_dtype = DType::kF8E4M3;
  return c;
}

// The scores of random keys are then about as large as usual. No scale is a power of two.
AttentionCase WithScales(AttentionCase c, kernels::CacheScales scales) {
  c.cache_scales = scales;
  c.scale = (c.scale != 0.0f ? c.scale : 1.0f / std::sqrt(static_cast<float>(c.head_dim))) /
            scales.k * 1.25f;
  return WithFp8(c);
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
    constexpr kernels::CacheScales kScales[] = {{}, {0.0037f, 0.23f}, {19.0f, 7.0f}};
    const AttentionCase c = WithScales(random, kScales[seed / 2 % 3]);
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
  if (kCases < 36) return;
  EXPECT_EQ(sizes_seen.size(), 16u);  // as many as resources.tsv lists
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

  OneKvHead(DType dtype, int32_t num_heads, std::vector<AttentionSequence> sequences)
      : case_(WithFp8({.sequences = std::move(sequences),
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
    PagedAttentionOp op(*device_);
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
  const AttentionCase case_;
  const AttentionBatch batch_;
  const std::unique_ptr<kernels::cuda::Device> device_;
  AttentionOnDevice on_device_;
};

// A sequence of one key gives that key's value, to the bit.
TEST(Fp8AttentionTest, EveryNumberOfAValueIsExact) {
  for (const DType dtype : kQueryTypes) {
    for (const int32_t num_heads : {1, 20, 64}) {
      OneKvHead tensors(dtype, num_heads, {{1, 1}});
      for (int first = 0; first < 256; first += OneKvHead::kHeadDim) {
        for (int d = 0; d < OneKvHead::kHeadDim; ++d) {
          const auto code = static_cast<uint8_t>(first + d);
          const bool is_nan = (code & 0x7f) == 0x7f;
          tensors.Set(/*is_key=*/false, 0, 0, d, is_nan ? uint8_t{0} : code);
        }
        const std::vector<float> out = tensors.Attend();
        for (size_t i = 0; i < out.size(); ++i) {
          const auto code = static_cast<uint8_t>(first + static_cast<int>(i) % OneKvHead::kHeadDim);
          const bool is_nan = (code & 0x7f) == 0x7f;
          ASSERT_EQ(out[i], is_nan ? 0.0f : kernels::E4M3ToF32(code)) << i;
        }
      }
    }
  }
}

bool AllNan(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float x) { return std::isnan(x); });
}
bool AnyNan(const std::vector<float>& values) {
  return std::ranges::any_of(values, [](float x) { return std::isnan(x); });
}

// A NaN among the keys or the values that a sequence sees must reach its output, because the engine
// looks for the cause of NaN among logits, and must not reach another sequence.
TEST(Fp8AttentionTest, NanOfAKeyOrAValueReachesTheRowsThatSeeIt) {
  for (const DType dtype : kQueryTypes) {
    for (const int32_t num_heads : {4, 20, 64}) {
      for (const bool is_key : {true, false}) {
        for (const uint8_t nan : {uint8_t{0x7f}, uint8_t{0xff}}) {
          // Keys in both halves of 16, and elements in both halves of 32.
          for (const auto& [key, d] : {std::pair(0, 3), {9, 20}, {70, 45}, {77, 2}, {149, 22}}) {
            OneKvHead tensors(dtype, num_heads, {{150, 1}, {90, 3}});
            EXPECT_FALSE(AnyNan(tensors.Attend()));
            tensors.Set(is_key, 0, key, d, nan);
            const std::vector<float> out = tensors.Attend();
            ASSERT_TRUE(AllNan(tensors.RowsOf(0, out))) << num_heads << " " << is_key << " " << key;
            ASSERT_FALSE(AnyNan(tensors.RowsOf(1, out)));
          }
        }
      }
    }
  }
}

// The kernel with wgmma reads 16-bit caches alone.
TEST(Fp8AttentionTest, PromptsRunOnMmaWithEitherKernelChosen) {
  const AttentionCase c = WithFp8({.sequences = {{100, 100}}, .head_dim = 128});
  const AttentionAnswer answer = CheckInEveryOrder(c, {.prefill = MatrixInstruction::kWgmma});
  EXPECT_FALSE(answer.prefill);
}

}  // namespace
}  // namespace quire::testing
