#include "kernels/ops/shift_keys.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/cache_testing.h"

namespace quire::kernels {
namespace {

using testing::F32;
using ::testing::HasSubstr;
using testing::HeadShape;
using testing::IsaPaths;
using testing::MakeBackend;
using testing::Owned;
using testing::PoisonedCache;
using testing::RandomSequence;
using testing::SequenceData;

constexpr int64_t kShiftTokens = 80, kShiftBlockSize = 32, kShiftPositions = 90;
constexpr float kShiftTableScale = 1.25f;

// Returns the cosines and sines of rope_dim / 2 frequencies at each position, times
// kShiftTableScale.
std::vector<float> ScaledRopeTable(int64_t rope_dim) {
  std::vector<float> table;
  for (int64_t p = 0; p < kShiftPositions; ++p) {
    for (int64_t i = 0; i < rope_dim / 2; ++i) {
      const double angle =
          static_cast<double>(p) *
          std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(rope_dim));
      table.push_back(static_cast<float>(kShiftTableScale * std::cos(angle)));
      table.push_back(static_cast<float>(kShiftTableScale * std::sin(angle)));
    }
  }
  return table;
}

// Returns one key from the cache. The CPU backend stores 16 keys together in a tile [head_dim][16].
std::vector<double> StoredKey(const PoisonedCache& cache, int32_t block, int64_t head,
                              int64_t offset) {
  const HeadShape& shape = cache.shape();
  std::vector<double> key(shape.head_dim);
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    const int64_t at = block * cache.view().block_stride() +
                       (head * kShiftBlockSize + offset / 16 * 16) * shape.head_dim + d * 16 +
                       offset % 16;
    key[d] = testing::StoredAt(cache.view(), at);
  }
  return key;
}

struct ShiftCase {
  DType dtype;
  RopeLayout layout;
  int64_t head_dim, rope_dim;
  int64_t value_dim = 0;  // 0: head_dim
};

class ShiftKeysTest : public ::testing::TestWithParam<ShiftCase> {};

TEST_P(ShiftKeysTest, TurnsTheKeysOfItsBlocksBackAndNothingElseOnEveryPath) {
  const ShiftCase& c = GetParam();
  const HeadShape shape{.num_heads = 2,
                        .num_kv_heads = 2,
                        .head_dim = c.head_dim,
                        .block_size = kShiftBlockSize,
                        .dtype = c.dtype,
                        .other_value_dim = c.value_dim};
  const SequenceData sequence = RandomSequence(shape, kShiftTokens, 1, {4, 0, 2});
  Owned<float> table = F32({kShiftPositions, c.rope_dim / 2, 2}, ScaledRopeTable(c.rope_dim));
  const std::vector<KeyShift> shifts = {{.block = 0, .distance = 17}, {.block = 2, .distance = 64}};
  const auto shift = [&](Backend& backend, PoisonedCache& cache) {
    return backend.ShiftKeys({.kv_cache = cache.view(),
                              .rope_table = table.view,
                              .rope_layout = c.layout,
                              .table_scale = kShiftTableScale,
                              .shifts = shifts});
  };
  const auto portable = MakeBackend("portable", 1);
  PoisonedCache before(*portable, shape, 5), after(*portable, shape, 5);
  for (PoisonedCache* cache : {&before, &after}) {
    cache->Write(sequence, 0, kShiftTokens, {.rope_table = table.view, .rope_layout = c.layout});
  }
  ASSERT_TRUE(shift(*portable, after).ok());

  for (int64_t t = 0; t < kShiftTokens; ++t) {
    const int32_t block = sequence.blocks[t / kShiftBlockSize];
    const int64_t distance = block == 0 ? 17 : block == 2 ? 64 : 0;
    const float* const angles = table.values.data() + distance * c.rope_dim;
    for (int64_t head = 0; head < 2; ++head) {
      const std::vector<double> old = StoredKey(before, block, head, t % kShiftBlockSize);
      const std::vector<double> got = StoredKey(after, block, head, t % kShiftBlockSize);
      std::vector<double> want = old, error(old.size(), 0.0);
      for (int64_t i = 0; i < c.rope_dim / 2 && distance > 0; ++i) {
        const int64_t a = c.layout == RopeLayout::kInterleaved ? 2 * i : i;
        const int64_t b = c.layout == RopeLayout::kInterleaved ? 2 * i + 1 : i + c.rope_dim / 2;
        const double cos = angles[2 * i] / kShiftTableScale,
                     sin = angles[2 * i + 1] / kShiftTableScale;
        want[a] = old[a] * cos + old[b] * sin;
        want[b] = old[b] * cos - old[a] * sin;
        error[a] = error[b] = 3 * 0x1p-24 * (std::abs(old[a]) + std::abs(old[b]));
      }
      for (int64_t d = 0; d < c.head_dim; ++d) {
        const double bound =
            error[d] == 0.0 ? 0.0 : error[d] + testing::LargestRounding(c.dtype, want[d]);
        ASSERT_NEAR(got[d], want[d], bound * 1.01) << t << " " << head << " " << d;
      }
    }
  }

  // All bytes that are not keys of blocks 0 and 2 must be unchanged: values, other blocks, and the
  // NaNs around the blocks.
  const int64_t stride = before.view().block_stride() * SizeOf(c.dtype);
  const int64_t key_bytes = 2 * kShiftBlockSize * c.head_dim * SizeOf(c.dtype);
  for (int64_t block = 0; block < 5; ++block) {
    const int64_t skip = block == 0 || block == 2 ? key_bytes : 0;
    const auto* const old = before.view().keys.data<uint8_t>() + block * stride;
    const auto* const now = after.view().keys.data<uint8_t>() + block * stride;
    EXPECT_EQ(std::memcmp(old + skip, now + skip, static_cast<size_t>(stride - skip)), 0) << block;
    if (skip > 0) {
      EXPECT_NE(std::memcmp(old, now, static_cast<size_t>(skip)), 0) << block;
    }
  }

  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa, 3);
    PoisonedCache cache(*backend, shape, 5);
    cache.Write(sequence, 0, kShiftTokens, {.rope_table = table.view, .rope_layout = c.layout});
    ASSERT_TRUE(shift(*backend, cache).ok());
    EXPECT_EQ(std::memcmp(cache.view().keys.raw(), after.view().keys.raw(),
                          static_cast<size_t>(cache.bytes())),
              0)
        << isa;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ShiftKeysTest,
    ::testing::Values(ShiftCase{DType::kF32, RopeLayout::kHalfSplit, 64, 64},
                      ShiftCase{DType::kF16, RopeLayout::kHalfSplit, 64, 64},
                      ShiftCase{DType::kBF16, RopeLayout::kHalfSplit, 64, 64},
                      ShiftCase{DType::kF32, RopeLayout::kInterleaved, 24, 16},
                      ShiftCase{DType::kF16, RopeLayout::kInterleaved, 24, 16},
                      ShiftCase{DType::kBF16, RopeLayout::kInterleaved, 8, 8},
                      ShiftCase{DType::kF16, RopeLayout::kHalfSplit, 24, 16},
                      ShiftCase{DType::kF8E4M3, RopeLayout::kHalfSplit, 64, 64},
                      ShiftCase{DType::kF8E4M3, RopeLayout::kInterleaved, 24, 16},
                      ShiftCase{DType::kF16, RopeLayout::kHalfSplit, 24, 16, 40}));

// A key that is rotated back by a distance equals the same key written that many positions earlier,
// apart from rounding errors. A stream that continues past its cache window relies on this
// property.
TEST(ShiftKeysPositionTest, EqualsAKeyWrittenAtTheEarlierPosition) {
  constexpr int64_t kDistance = 48, kHeadDim = 32;
  const HeadShape shape{.num_heads = 1, .num_kv_heads = 1, .head_dim = kHeadDim, .block_size = 16};
  const SequenceData sequence = RandomSequence(shape, 64, 1, {0, 1, 2, 3});
  SequenceData last = sequence;  // `last` begins with the keys of tokens 48 to 63
  last.key.erase(last.key.begin(), last.key.begin() + kDistance * kHeadDim);
  Owned<float> table = F32({kShiftPositions, kHeadDim / 2, 2}, ScaledRopeTable(kHeadDim));
  const QkvPostArgs rope{.rope_table = table.view, .rope_layout = RopeLayout::kHalfSplit};
  const std::vector<KeyShift> shifts = {{.block = 3, .distance = kDistance}};
  const auto backend = MakeBackend("auto", 1);
  PoisonedCache moved(*backend, shape, 4), written(*backend, shape, 4);
  moved.Write(sequence, 0, 64, rope);
  written.Write(last, 0, 16, rope);
  ASSERT_TRUE(backend
                  ->ShiftKeys({.kv_cache = moved.view(),
                               .rope_table = table.view,
                               .table_scale = kShiftTableScale,
                               .shifts = shifts})
                  .ok());
  for (int64_t i = 0; i < 16 * kHeadDim; ++i) {
    const float got = moved.view().keys.data<float>()[3 * moved.view().block_stride() + i];
    // The bound assumes that the elements of keys are at most 5 in magnitude. It covers the
    // roundings of the rotations and of the rows of the table for three positions: the original
    // one, the distance, and the earlier one.
    ASSERT_NEAR(got, written.view().keys.data<float>()[i], 10 * 0x1p-24 * 10 * kShiftTableScale)
        << i;
  }
}

TEST(ShiftKeysErrorTest, ErrorsSayWhatWantedGot) {
  const auto backend = MakeBackend("auto");
  Owned<float> cache = F32({4, 2, 2, 16, 16}), table = F32({5, 9, 2});
  std::vector<KeyShift> shifts = {{.block = 3, .distance = 4}};
  ShiftKeysArgs args{.kv_cache = cache.view,
                     .rope_table = TensorView(table.values.data(), DType::kF32, {5, 8, 2}),
                     .shifts = shifts};
  const auto message = [&] { return std::string(backend->ShiftKeys(args).message()); };
  EXPECT_EQ(message(), "");
  shifts[0].distance = 5;
  EXPECT_THAT(message(), HasSubstr("shifts: want distances in [0, 5), got 5"));
  shifts[0] = {.block = 4, .distance = 1};
  EXPECT_THAT(message(), HasSubstr("shifts: want blocks in [0, 4), got 4"));
  args.shifts = {};
  args.table_scale = 0.0f;
  EXPECT_THAT(message(), HasSubstr("table_scale: want > 0, got 0"));
  args.rope_table = table.view;
  EXPECT_THAT(message(), HasSubstr("rope_table: want rope_dim / 2 at most 8"));
  args.rope_layout = RopeLayout::kNone;
  EXPECT_THAT(message(), HasSubstr("rope_layout: want keys that a rotary embedding turned"));
}

}  // namespace
}  // namespace quire::kernels
