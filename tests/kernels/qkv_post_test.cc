#include "kernels/ops/qkv_post.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/cache_testing.h"

namespace quire::kernels {
namespace {

using testing::F32;
using ::testing::HasSubstr;
using testing::HeadShape;
using testing::IsaPaths;
using testing::LargestRounding;
using testing::MakeBackend;
using testing::Normal;
using testing::Owned;
using testing::PoisonedCache;
using testing::RandomSequence;
using testing::SequenceData;
using testing::Stored;
using testing::StoredAt;

constexpr int64_t kTokens = 37;

std::vector<float> RopeTable(int64_t positions, int64_t rope_dim) {
  std::vector<float> table;
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < rope_dim / 2; ++i) {
      const double angle =
          static_cast<double>(p) *
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rope_dim));
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

// Returns a head rotated by the definition of RoPE, computed in doubles.
std::vector<double> Rotate(const float* x, int64_t head_dim, int64_t rope_dim, const float* table,
                           RopeLayout layout) {
  std::vector<double> out(x, x + head_dim);
  if (layout == RopeLayout::kNone) return out;
  const int64_t half = rope_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t a = layout == RopeLayout::kInterleaved ? 2 * i : i;
    const int64_t b = layout == RopeLayout::kInterleaved ? 2 * i + 1 : i + half;
    const double cos = table[2 * i], sin = table[2 * i + 1];
    out[a] = x[a] * cos - x[b] * sin;
    out[b] = x[a] * sin + x[b] * cos;
  }
  return out;
}

class QkvPostTest : public ::testing::TestWithParam<RopeLayout> {};

TEST_P(QkvPostTest, RotatesAndStoresByTheDefinitionOnEveryPath) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    for (const auto& [head_dim, value_dim] :
         {std::pair(8, 8), {24, 24}, {64, 64}, {24, 40}, {64, 8}}) {
      const HeadShape shape{.num_heads = 6,
                            .num_kv_heads = 2,
                            .head_dim = head_dim,
                            .block_size = 16,
                            .dtype = dtype,
                            .other_value_dim = value_dim};
      const int64_t rope_dim = head_dim == 24 ? 16 : head_dim;  // later dimensions are not rotated
      const SequenceData sequence = RandomSequence(shape, kTokens, 1, {4, 0, 2});
      Owned<float> table = F32({kTokens, rope_dim / 2, 2}, RopeTable(kTokens, rope_dim));
      QkvPostArgs args{.rope_table = table.view, .rope_layout = GetParam()};
      const auto portable = MakeBackend("portable", 1);
      PoisonedCache reference(*portable, shape, 5);
      const std::vector<float> query = reference.Write(sequence, 0, kTokens, args);

      const double epsilon = std::numeric_limits<float>::epsilon();
      for (int64_t t = 0; t < kTokens; ++t) {
        const float* angles = table.values.data() + t * rope_dim;
        for (int64_t h = 0; h < 6; ++h) {
          const int64_t at = (t * 6 + h) * head_dim;
          const auto want =
              Rotate(sequence.query.data() + at, head_dim, rope_dim, angles, GetParam());
          for (int64_t d = 0; d < head_dim; ++d) {
            ASSERT_NEAR(query[at + d], want[d], 2 * epsilon * 8) << t << " " << h << " " << d;
          }
        }
        // The CPU backend documents this layout of the cache: keys in tiles of [key_dim][16], and
        // values as [token][value_dim].
        for (int64_t h = 0; h < 2; ++h) {
          const int64_t at = (t * 2 + h) * head_dim;
          const auto want =
              Rotate(sequence.key.data() + at, head_dim, rope_dim, angles, GetParam());
          const int64_t block = sequence.blocks[t / 16] * reference.view().block_stride();
          const int64_t head = block + h * 16 * head_dim;
          const auto stored = [&](int64_t element) { return StoredAt(reference.view(), element); };
          for (int64_t d = 0; d < head_dim; ++d) {
            const double bound = LargestRounding(dtype, want[d]) + 2 * epsilon * 8;
            ASSERT_NEAR(stored(head + d * 16 + t % 16), want[d], 1.01 * bound);
          }
          const int64_t values = block + 2 * 16 * head_dim + (h * 16 + t % 16) * value_dim;
          for (int64_t d = 0; d < value_dim; ++d) {
            ASSERT_EQ(stored(values + d),
                      Stored(dtype, sequence.value[(t * 2 + h) * value_dim + d]));
          }
        }
      }

      for (const std::string& isa : IsaPaths()) {
        for (const int64_t chunk : {int64_t{1}, int64_t{10}, kTokens}) {
          const auto backend = MakeBackend(isa, 3);
          PoisonedCache cache(*backend, shape, 5);
          std::vector<float> got;
          for (int64_t t = 0; t < kTokens; t += chunk) {
            const auto rows = cache.Write(sequence, t, std::min(t + chunk, kTokens), args);
            got.insert(got.end(), rows.begin(), rows.end());
          }
          ASSERT_EQ(std::memcmp(got.data(), query.data(), query.size() * sizeof(float)), 0) << isa;
          // The NaNs between the blocks are compared, too.
          ASSERT_EQ(std::memcmp(cache.view().keys.raw(), reference.view().keys.raw(),
                                static_cast<size_t>(cache.bytes())),
                    0)
              << isa << " chunks of " << chunk;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, QkvPostTest,
                         ::testing::Values(RopeLayout::kNone, RopeLayout::kInterleaved,
                                           RopeLayout::kHalfSplit));

// Returns `x` after the op Norm. With `by_head`, each head of [tokens, heads, head_dim] is
// normalized by itself; otherwise all heads of a token are normalized together.
std::vector<float> NormHeads(Backend& backend, const std::vector<float>& x, int64_t num_heads,
                             int64_t head_dim, bool by_head, const TensorView& weight,
                             NormKind kind) {
  const int64_t size = by_head ? head_dim : num_heads * head_dim;
  const int64_t rows = static_cast<int64_t>(x.size()) / size;
  Owned<float> input = F32({rows, size}, x), out = F32({rows, size});
  EXPECT_TRUE(
      backend
          .Norm(
              {.out = out.view, .input = input.view, .weight = weight, .kind = kind, .eps = 1e-3f})
          .ok());
  return out.values;
}

TEST(QkvPostPreparationTest, EqualsTheOpsOneAfterAnother) {
  constexpr float kClip = 1.25f;
  for (const bool by_head : {true, false}) {
    for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
      for (const int64_t head_dim : {24, 64}) {
        const HeadShape shape{.num_heads = 6,
                              .num_kv_heads = 2,
                              .head_dim = head_dim,
                              .block_size = 16,
                              .dtype = DType::kF32};
        const int64_t q_size = 6 * head_dim, kv_size = 2 * head_dim;
        const SequenceData sequence = RandomSequence(shape, kTokens, 1, {4, 0, 2});
        Owned<float> table = F32({kTokens, head_dim / 2, 2}, RopeTable(kTokens, head_dim));
        Owned<float> bias = F32({q_size + 2 * kv_size}, Normal(5, q_size + 2 * kv_size));
        Owned<float> query_weight =
            F32({by_head ? head_dim : q_size}, Normal(6, by_head ? head_dim : q_size));
        Owned<float> key_weight =
            F32({by_head ? head_dim : kv_size}, Normal(7, by_head ? head_dim : kv_size));
        const QkvPostArgs plain{.rope_table = table.view, .rope_layout = RopeLayout::kHalfSplit};
        QkvPostArgs args = plain;
        args.bias = bias.view;
        args.clip = kClip;
        args.qk_norm = {.query_weight = query_weight.view,
                        .key_weight = key_weight.view,
                        .kind = kind,
                        .eps = 1e-3f};

        const auto portable = MakeBackend("portable", 1);
        SequenceData prepared = sequence;
        const auto add_and_clip = [&](std::vector<float>& x, int64_t size, int64_t first) {
          for (size_t i = 0; i < x.size(); ++i) {
            x[i] += bias.values[first + static_cast<int64_t>(i) % size];
            x[i] = std::clamp(x[i], -kClip, kClip);
          }
        };
        add_and_clip(prepared.query, q_size, 0);
        add_and_clip(prepared.key, kv_size, q_size);
        add_and_clip(prepared.value, kv_size, q_size + kv_size);
        prepared.query =
            NormHeads(*portable, prepared.query, 6, head_dim, by_head, query_weight.view, kind);
        prepared.key =
            NormHeads(*portable, prepared.key, 2, head_dim, by_head, key_weight.view, kind);
        PoisonedCache reference(*portable, shape, 5);
        const std::vector<float> want = reference.Write(prepared, 0, kTokens, plain);

        for (const std::string& isa : IsaPaths()) {
          SCOPED_TRACE(isa);
          const auto backend = MakeBackend(isa, 3);
          PoisonedCache cache(*backend, shape, 5);
          EXPECT_EQ(cache.Write(sequence, 0, kTokens, args), want);
          EXPECT_EQ(std::memcmp(cache.view().keys.raw(), reference.view().keys.raw(),
                                static_cast<size_t>(cache.bytes())),
                    0);
        }
      }
    }
  }
}

TEST(QkvPostPreparationTest, QueriesAreScaledByPositionAndKeysAreNot) {
  const HeadShape shape{
      .num_heads = 6, .num_kv_heads = 2, .head_dim = 24, .block_size = 16, .dtype = DType::kF32};
  const SequenceData sequence = RandomSequence(shape, kTokens, 1, {4, 0, 2});
  Owned<float> table = F32({kTokens, 12, 2}, RopeTable(kTokens, 24));
  Owned<float> scales = F32({kTokens});
  for (int64_t p = 0; p < kTokens; ++p) {
    scales.values[p] = 1.0f + 0.37f * static_cast<float>(p / 5);
  }
  for (const RopeLayout layout : {RopeLayout::kNone, RopeLayout::kInterleaved}) {
    const QkvPostArgs plain{.rope_table = table.view, .rope_layout = layout};
    QkvPostArgs args = plain;
    args.query_scales = scales.view;
    for (const std::string& isa : IsaPaths()) {
      SCOPED_TRACE(isa);
      const auto backend = MakeBackend(isa, 2);
      PoisonedCache reference(*backend, shape, 5), cache(*backend, shape, 5);
      std::vector<float> want = reference.Write(sequence, 0, kTokens, plain);
      for (size_t i = 0; i < want.size(); ++i) want[i] *= scales.values[i / (6 * 24)];
      EXPECT_EQ(cache.Write(sequence, 0, kTokens, args), want);
      EXPECT_EQ(std::memcmp(cache.view().keys.raw(), reference.view().keys.raw(),
                            static_cast<size_t>(cache.bytes())),
                0);
    }
  }
}

TEST(QkvPostPreparationTest, ClippingKeepsNan) {
  const HeadShape shape{.num_heads = 1, .num_kv_heads = 1, .head_dim = 16, .block_size = 16};
  SequenceData sequence = RandomSequence(shape, 1, 1, {0});
  sequence.query[3] = std::nanf("");
  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa, 1);
    PoisonedCache cache(*backend, shape, 1);
    const std::vector<float> query = cache.Write(sequence, 0, 1, {.clip = 0.5f});
    EXPECT_TRUE(std::isnan(query[3])) << isa;
    EXPECT_EQ(query[4], std::clamp(sequence.query[4], -0.5f, 0.5f)) << isa;
  }
}

TEST(QkvPostPreparationTest, ValuesAreScaledAndKeysAreNot) {
  const HeadShape shape{.num_heads = 2, .num_kv_heads = 2, .head_dim = 24, .other_value_dim = 40};
  const SequenceData sequence = RandomSequence(shape, kTokens, 1, {1, 0, 2});
  SequenceData scaled = sequence;
  for (float& x : scaled.value) x *= 0.707f;
  const auto portable = MakeBackend("portable", 1);
  PoisonedCache want(*portable, shape, 3);
  want.Write(scaled, 0, kTokens);
  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa, 1);
    PoisonedCache cache(*backend, shape, 3);
    cache.Write(sequence, 0, kTokens, {.value_scale = 0.707f});
    EXPECT_EQ(std::memcmp(cache.view().keys.raw(), want.view().keys.raw(),
                          static_cast<size_t>(cache.bytes())),
              0)
        << isa;
  }
}

TEST(QkvPostErrorTest, ErrorsSayWhatWantedGot) {
  const auto backend = MakeBackend("auto");
  Owned<float> query = F32({2, 4, 16}), cache = F32({2, 2, 2, 16, 16}), qkv = F32({2, 8 * 16}),
               table = F32({4, 9, 2});
  Owned<int32_t> positions = testing::I32({2}, {0, 4});
  std::vector<int64_t> slots = {0, 32};
  QkvPostArgs args{.query = query.view,
                   .kv_cache = cache.view,
                   .qkv = qkv.view,
                   .positions = positions.view,
                   .slot_mapping = TensorView(slots.data(), DType::kI64, {2})};
  const auto message = [&] { return std::string(backend->QkvPost(args).message()); };
  EXPECT_THAT(message(), HasSubstr("slot_mapping: want slots in [0, 32), got 32"));
  slots[1] = 31;
  args.rope_layout = RopeLayout::kHalfSplit;
  args.rope_table = table.view;
  EXPECT_THAT(message(), HasSubstr("rope_table: want rope_dim / 2 at most 8"));
  args.rope_table = TensorView(table.values.data(), DType::kF32, {4, 8, 2});
  EXPECT_THAT(message(), HasSubstr("positions: want positions in [0, 4), got 4"));
  Owned<float> scales = F32({4}), more_scales = F32({5});
  args.query_scales = more_scales.view;
  EXPECT_THAT(message(), HasSubstr("query_scales: want f32 [4], got f32 [5]"));
  args.rope_layout = RopeLayout::kNone;
  args.query_scales = scales.view;
  EXPECT_THAT(message(), HasSubstr("positions: want positions in [0, 4), got 4"));
  args.positions = {};
  EXPECT_THAT(message(), HasSubstr("positions: want int32 [2]"));
  args.positions = positions.view;
  args.query_scales = {};
  args.rope_layout = RopeLayout::kHalfSplit;
  Owned<float> weights = F32({128});
  const auto vector = [&](int64_t size) {
    return TensorView(weights.values.data(), DType::kF32, {size});
  };
  args.bias = vector(127);
  EXPECT_THAT(message(), HasSubstr("bias: want f32 [128], got f32 [127]"));
  args.bias = {};
  args.clip = -1.0f;
  EXPECT_THAT(message(), HasSubstr("clip: want >= 0, got -1"));
  args.clip = 0.0f;
  args.value_scale = INFINITY;
  EXPECT_THAT(message(), HasSubstr("value_scale: want finite, got inf"));
  args.value_scale = 1.0f;
  args.qk_norm.query_weight = vector(16);
  EXPECT_THAT(message(), HasSubstr("qk_norm.key_weight: want f32 [16]"));
  args.qk_norm.key_weight = vector(32);
  EXPECT_THAT(message(), HasSubstr("qk_norm.key_weight: want f32 [16], got f32 [32]"));
  args.qk_norm.query_weight = vector(63);
  EXPECT_THAT(message(), HasSubstr("qk_norm.query_weight: want f32 [64], got f32 [63]"));
  args.qk_norm = {};
  args.query = TensorView(query.values.data(), DType::kF32, {2, 3, 16});
  EXPECT_THAT(message(), HasSubstr("query: want num_heads a multiple of num_kv_heads = 2, got 3"));
  args.query = query.view;
  args.qkv = F32({2, 7 * 16}).view;
  EXPECT_THAT(message(), HasSubstr("qkv: want f32|f16|bf16 [2, 128], got f32 [2, 112]"));
}

}  // namespace
}  // namespace quire::kernels
