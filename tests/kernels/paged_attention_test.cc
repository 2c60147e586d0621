#include "kernels/ops/paged_attention.h"

#include <numeric>
#include <rapidcheck.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/cache_testing.h"
#include "tests/testing/seen_keys.h"

namespace quire::kernels {
namespace {

using testing::F32;
using ::testing::HasSubstr;
using testing::HeadShape;
using testing::IsaPaths;
using testing::MakeBackend;
using testing::Normal;
using testing::Owned;
using testing::PoisonedCache;
using testing::RandomSequence;
using testing::SequenceData;
using testing::Stored;

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

// Returns the block numbers first, first + step, and so on, enough for `length` tokens. If `step`
// is more than 1, no two of the blocks are neighbours.
std::vector<int32_t> Blocks(int64_t length, int64_t block_size, int32_t first, int32_t step) {
  std::vector<int32_t> blocks;
  for (int64_t i = 0; i * block_size < length; ++i) {
    blocks.push_back(first + static_cast<int32_t>(i) * step);
  }
  return blocks;
}

struct Features {
  float soft_cap = 0.0f;
  AttentionPattern pattern;
  bool alibi = false;
  bool alibi_is_rounded = false;
  bool sinks = false;
};

// What a cache keeps of a sequence's keys and values.
struct KeptSequence {
  std::vector<double> key, value;
};

// Returns what a cache of this dtype and scale keeps of `values`.
std::vector<double> Kept(DType dtype, const std::vector<float>& values, float scale) {
  std::vector<double> kept;
  for (const float x : values) kept.push_back(double{Stored(dtype, x / scale)} * scale);
  return kept;
}

// Checks the output of one token and head against doubles, within a bound on the error of float32.
void CheckRow(const HeadShape& shape, const SequenceData& sequence, const KeptSequence& kept,
              int64_t token, int64_t head, const Features& features, float scale,
              const std::vector<float>& slopes, const std::vector<float>& sinks, const float* got) {
  const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const float* q = sequence.query.data() + (token * shape.num_heads + head) * shape.head_dim;
  std::vector<int64_t> keys;
  std::vector<double> scores;
  double score_bound = 0.0;
  for (int64_t j = 0; j <= token; ++j) {
    if (!testing::Sees(features.pattern, token, j, head)) continue;
    keys.push_back(j);
    const double* k = kept.key.data() + (j * shape.num_kv_heads + kv_head) * shape.head_dim;
    double dot = 0.0, magnitude = 0.0;
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      dot += double{q[d]} * k[d];
      magnitude += std::abs(double{q[d]} * k[d]);
    }
    double score = dot * scale;
    double bound = static_cast<double>(shape.head_dim + 3) * kEpsilon * magnitude * scale;
    if (features.soft_cap > 0) {
      score = features.soft_cap * std::tanh(score / features.soft_cap);
      bound += 8 * kEpsilon * features.soft_cap;
    }
    if (features.alibi_is_rounded) {
      const float key = Bf16ToF32(F32ToBf16(static_cast<float>(j)));
      score += double{scale} * Bf16ToF32(F32ToBf16(slopes[head] * key));
      bound += 2 * kEpsilon * std::abs(score);
    } else if (features.alibi) {
      score += slopes[head] * static_cast<double>(j - token);
      bound += 2 * kEpsilon * std::abs(score);
    }
    score_bound = std::max(score_bound, bound + kEpsilon * std::abs(score));
    scores.push_back(score);
  }
  double maximum = *std::max_element(scores.begin(), scores.end());
  if (features.sinks) maximum = std::max(maximum, double{sinks[head]});
  double sum = features.sinks ? std::exp(sinks[head] - maximum) : 0.0;
  for (double& score : scores) sum += score = std::exp(score - maximum);
  for (int64_t d = 0; d < shape.value_dim(); ++d) {
    double want = 0.0, magnitude = 0.0;
    for (size_t j = 0; j < scores.size(); ++j) {
      const double v = kept.value[(keys[j] * shape.num_kv_heads + kv_head) * shape.value_dim() + d];
      want += scores[j] / sum * v;
      magnitude += scores[j] / sum * std::abs(v);
    }
    // `relative` bounds the relative error of each weight and of the sum of all weights. It counts
    // the error of the scores. It also counts the roundings of e^x, of rescaling by tiles and
    // segments, and of the sums.
    const double relative =
        2 * score_bound + static_cast<double>(scores.size() / 8 + 32) * kEpsilon;
    ASSERT_NEAR(got[d], want, 2 * relative * magnitude + 1e-7)
        << "token " << token << " head " << head << " d " << d;
  }
}

struct Case {
  HeadShape shape;
  Features features;
  int64_t length;
};

class AttentionCaseTest : public ::testing::TestWithParam<Case> {};

// Runs a prefill of all tokens but the last in two chunks, then a decode. The second chunk runs
// beside another sequence. The outputs must be within bounds of a result in doubles. They must have
// the same bits on every ISA path and for any number of threads.
TEST_P(AttentionCaseTest, AgreesWithDoublesToTheSameBitsOnEveryPath) {
  const HeadShape shape = GetParam().shape;
  const Features features = GetParam().features;
  const int64_t length = GetParam().length;
  const int64_t num_blocks = 2 * (length / shape.block_size + 1) + 1;
  const SequenceData sequence =
      RandomSequence(shape, length, 1, Blocks(length, shape.block_size, 1, 2));
  const KeptSequence kept{.key = Kept(shape.dtype, sequence.key, shape.scales.k),
                          .value = Kept(shape.dtype, sequence.value, shape.scales.v)};
  const SequenceData other =
      RandomSequence(shape, length, 9, Blocks(length, shape.block_size, 0, 2));
  Owned<float> slopes = F32({shape.num_heads}), sinks = F32({shape.num_heads});
  for (int64_t h = 0; h < shape.num_heads; ++h) {
    slopes.values[h] = std::exp2(-static_cast<float>(h + 1));
    sinks.values[h] = static_cast<float>(h) - 1.0f;
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  PagedAttentionArgs args{
      .scale = scale, .soft_cap = features.soft_cap, .pattern = features.pattern};
  if (features.alibi || features.alibi_is_rounded) args.alibi_slopes = slopes.view;
  args.alibi_is_rounded = features.alibi_is_rounded;
  if (features.sinks) args.sinks = sinks.view;

  std::vector<float> first;
  for (const std::string& isa : IsaPaths()) {
    for (const int threads : {1, 5}) {
      if (isa == "portable" && threads != 1) continue;
      const auto backend = MakeBackend(isa, threads);
      PoisonedCache cache(*backend, shape, num_blocks);
      const int64_t half = length / 3;
      std::vector<float> out;
      const auto append = [&](const std::vector<float>& rows, int64_t skip) {
        out.insert(out.end(), rows.begin() + skip * shape.num_heads * shape.value_dim(),
                   rows.end());
      };
      cache.Write(sequence, 0, half);
      append(cache.Attend({{&sequence, 0, half}}, args), 0);
      cache.Write(sequence, half, length - 1);
      cache.Write(other, 0, 5);
      append(cache.Attend({{&other, 0, 5}, {&sequence, half, length - 1}}, args), 5);
      cache.Write(sequence, length - 1, length);
      append(cache.Attend({{&sequence, length - 1, length}}, args), 0);
      if (first.empty()) {
        first = out;
        for (int64_t t = 0; t < length; t += t < 40 || t + 40 > length ? 1 : 17) {
          for (int64_t h = 0; h < shape.num_heads; ++h) {
            CheckRow(shape, sequence, kept, t, h, features, scale, slopes.values, sinks.values,
                     out.data() + (t * shape.num_heads + h) * shape.value_dim());
          }
        }
      }
      ASSERT_EQ(std::memcmp(out.data(), first.data(), first.size() * sizeof(float)), 0)
          << isa << " threads " << threads;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AttentionCaseTest,
    ::testing::Values(
        Case{{4, 4, 8, 16, DType::kF32}, {}, 50},     // MHA, the narrowest head
        Case{{3, 1, 64, 16, DType::kF16}, {}, 600},   // GQA of 3 over three segments
        Case{{8, 1, 24, 32, DType::kBF16}, {}, 270},  // MQA, a head of one and a half vectors
        Case{{2, 1, 256, 16, DType::kF16}, {}, 40},   // the widest head
        Case{{3, 1, 64, 16, DType::kF8E4M3}, {}, 600},
        Case{{4, 2, 40, 32, DType::kF8E4M3, 24},
             {.soft_cap = 30.0f, .pattern = AttentionPattern::Window(100), .sinks = true},
             300},
        // Scales of the cache, which change neither the bias of ALiBi nor the sinks. The last
        // context is merged from several work items.
        Case{{3, 1, 64, 16, DType::kF8E4M3, 0, {0.0037f, 0.11f}},
             {.soft_cap = 2.0f, .alibi = true, .sinks = true},
             300},
        Case{{6, 2, 16, 16, DType::kF8E4M3, 0, {7.0f, 13.0f}}, {.alibi_is_rounded = true}, 600},
        Case{{2, 1, 8, 16, DType::kF8E4M3, 0, {0.019f, 0.3f}}, {.sinks = true}, 4400},
        Case{{7, 1, 40, 16, DType::kF32}, {}, 70},   // an odd group
        Case{{40, 1, 16, 16, DType::kF32}, {}, 20},  // more heads than a work item has rows
        // Values that are shorter or longer than the keys. The dims 192 and 128 are those of
        // MiMo-V2-Flash.
        Case{{3, 1, 24, 16, DType::kF16, 8}, {}, 600},
        Case{{6, 2, 8, 16, DType::kF32, 72}, {}, 300},
        Case{{2, 1, 8, 16, DType::kF32, 256}, {}, 40},
        Case{{4, 2, 192, 32, DType::kBF16, 128}, {.sinks = true}, 70},
        Case{{4, 2, 40, 16, DType::kBF16, 56},
             {.soft_cap = 30.0f,
              .pattern = AttentionPattern::Window(37),
              .alibi = true,
              .sinks = true},
             330},
        Case{{4, 2, 16, 16, DType::kF32}, {.pattern = AttentionPattern::Window(1)}, 40},
        // Some segments are before the window.
        Case{{4, 2, 16, 16, DType::kF16}, {.pattern = AttentionPattern::Window(100)}, 600},
        // Segments have 256 keys. Windows begin one key after a border of segments, at the border,
        // and one key before it. For the decode at position 599 and the border 512, these are the
        // windows 87, 88 and 89. For a work item that begins at position 344 and the border 256,
        // they are 88, 89 and 90.
        Case{{2, 1, 8, 16, DType::kF32}, {.pattern = AttentionPattern::Window(87)}, 600},
        Case{{2, 1, 8, 16, DType::kF32}, {.pattern = AttentionPattern::Window(88)}, 600},
        Case{{2, 1, 8, 16, DType::kF32}, {.pattern = AttentionPattern::Window(89)}, 600},
        Case{{2, 1, 8, 16, DType::kF32}, {.pattern = AttentionPattern::Window(90)}, 600},
        Case{{4, 2, 16, 16, DType::kF32}, {.pattern = AttentionPattern::Chunk(1)}, 40},
        Case{{4, 2, 16, 16, DType::kF16}, {.pattern = AttentionPattern::Chunk(100)}, 600},
        // Chunks that end at a border of segments, and one key before and after it.
        Case{{2, 1, 8, 16, DType::kF32}, {.pattern = AttentionPattern::Chunk(255)}, 600},
        Case{{2, 1, 8, 16, DType::kF32}, {.pattern = AttentionPattern::Chunk(256)}, 600},
        Case{{2, 1, 8, 16, DType::kF32}, {.pattern = AttentionPattern::Chunk(257)}, 600},
        Case{{6, 2, 16, 16, DType::kF32}, {.alibi = true}, 300},
        // The bias uses positions rounded to bf16, which changes positions from 257 on.
        Case{{6, 2, 16, 16, DType::kF32}, {.alibi_is_rounded = true}, 600},
        Case{{4, 2, 16, 32, DType::kF32}, {.sinks = true}, 300},
        Case{{4, 2, 16, 16, DType::kF32}, {.soft_cap = 2.0f}, 70},
        Case{{4, 2, 32, 16, DType::kBF16},
             {.soft_cap = 30.0f,
              .pattern = AttentionPattern::Window(37),
              .alibi = true,
              .sinks = true},
             330},
        Case{{4, 2, 32, 16, DType::kBF16},
             {.soft_cap = 30.0f,
              .pattern = AttentionPattern::Chunk(37),
              .alibi = true,
              .sinks = true},
             330},
        // Heads see different blocks, in groups of 1, 2, 4 and 5 heads. The last token is the last
        // or the first of a block, or inside one.
        Case{{3, 3, 16, 16, DType::kF32}, {.pattern = AttentionPattern::Blocks(64, 2, 3, 1)}, 640},
        Case{{4, 2, 16, 16, DType::kF16}, {.pattern = AttentionPattern::Blocks(64, 1, 4, 1)}, 641},
        Case{{8, 2, 8, 32, DType::kBF16}, {.pattern = AttentionPattern::Blocks(64, 2, 8, 1)}, 1111},
        Case{{4, 1, 8, 16, DType::kF32}, {.pattern = AttentionPattern::Blocks(128, 1, 3, 0)}, 900},
        Case{{4, 1, 8, 16, DType::kF32}, {.pattern = AttentionPattern::Blocks(64, 1, 7, 2)}, 639},
        Case{{5, 1, 24, 16, DType::kF16},
             {.soft_cap = 30.0f,
              .pattern = AttentionPattern::Blocks(64, 2, 5, 1),
              .alibi = true,
              .sinks = true},
             705},
        // Super-segments have 4096 keys. The last tokens see keys of two super-segments.
        Case{{2, 1, 8, 16, DType::kF32}, {}, 4400},
        Case{{2, 1, 8, 16, DType::kF16},
             {.pattern = AttentionPattern::Window(900), .sinks = true},
             4400}));

void CheckThatAnyChunksGiveTheBitsOfOneByOne(const AttentionPattern& pattern) {
  const PagedAttentionArgs args{.scale = 0.25f, .pattern = pattern};
  const HeadShape shape{.num_heads = 3, .num_kv_heads = 1, .head_dim = 16};
  constexpr int64_t kLength = 540;
  const SequenceData a = RandomSequence(shape, kLength, 1, Blocks(kLength, 16, 1, 2));
  const SequenceData b = RandomSequence(shape, kLength, 5, Blocks(kLength, 16, 0, 2));
  const auto single = MakeBackend("auto", 1);
  PoisonedCache reference(*single, shape, 80);
  std::vector<float> want;
  for (int64_t t = 0; t < kLength; ++t) {
    reference.Write(a, t, t + 1);
    const std::vector<float> row = reference.Attend({{&a, t, t + 1}}, args);
    want.insert(want.end(), row.begin(), row.end());
  }
  const auto backend = MakeBackend("auto", 3);
  EXPECT_TRUE(rc::check([&] {
    PoisonedCache cache(*backend, shape, 80);
    std::vector<float> got;
    int64_t done = 0, other = 0;
    while (done < kLength) {
      const int64_t count =
          std::min(kLength - done,
                   *rc::gen::oneOf(rc::gen::inRange<int64_t>(1, 300), rc::gen::just<int64_t>(1)));
      const int64_t more = std::min(kLength - other, *rc::gen::inRange<int64_t>(0, 40));
      std::vector<PoisonedCache::Chunk> chunks;
      if (more > 0) {
        cache.Write(b, other, other + more);
        chunks.push_back({&b, other, other + more});
      }
      cache.Write(a, done, done + count);
      chunks.push_back({&a, done, done + count});
      const std::vector<float> rows = cache.Attend(chunks, args);
      got.insert(got.end(), rows.begin() + more * 3 * 16, rows.end());
      done += count;
      other += more;
    }
    RC_ASSERT(got.size() == want.size());
    RC_ASSERT(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0);
  }));
}

TEST(PagedAttentionTest, AnyChunksOfAnyBatchGiveTheBitsOfOneByOne) {
  CheckThatAnyChunksGiveTheBitsOfOneByOne({});
  CheckThatAnyChunksGiveTheBitsOfOneByOne(AttentionPattern::Blocks(64, 2, 4, 1));
}

// A head reads neither K nor V of a block that it does not see, though another head of its group
// sees the block.
TEST(PagedAttentionTest, ABlockThatOverflowsReachesOnlyTheHeadsThatSeeIt) {
  const HeadShape shape{.num_heads = 4, .num_kv_heads = 1, .head_dim = 16, .dtype = DType::kF16};
  constexpr int64_t kLength = 520;
  constexpr AttentionPattern kPattern = AttentionPattern::Blocks(64, 1, 4, 1);
  SequenceData sequence = RandomSequence(shape, kLength, 3, Blocks(kLength, 16, 0, 1));
  const auto backend = MakeBackend("auto", 2);
  PoisonedCache clean(*backend, shape, 40), bad(*backend, shape, 40);
  const PagedAttentionArgs args{.scale = 0.25f, .pattern = kPattern};
  clean.Write(sequence, 0, kLength);
  const std::vector<float> want = clean.Attend({{&sequence, 448, kLength}}, args);
  for (int64_t d = 0; d < 16; ++d) sequence.key[130 * 16 + d] = 1e30f;  // infinity in f16
  for (int64_t d = 0; d < 16; ++d) sequence.value[131 * 16 + d] = 1e30f;
  bad.Write(sequence, 0, kLength);
  const std::vector<float> got = bad.Attend({{&sequence, 448, kLength}}, args);
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t head = i / 16 % 4;
    if (head == 1) {  // the one that sees block 2
      EXPECT_FALSE(std::isfinite(got[i])) << i;
    } else {
      ASSERT_EQ(got[i], want[i]) << i;
    }
  }
}

TEST(PagedAttentionTest, LaterTokensThatOverflowDoNotReachEarlierOnes) {
  const HeadShape shape{.num_heads = 2, .num_kv_heads = 1, .head_dim = 16, .dtype = DType::kF16};
  SequenceData sequence = RandomSequence(shape, 20, 3, {0, 1});
  const auto backend = MakeBackend("auto");
  PoisonedCache clean(*backend, shape, 2), bad(*backend, shape, 2);
  clean.Write(sequence, 0, 20);
  const std::vector<float> want = clean.Attend({{&sequence, 0, 20}}, {.scale = 0.25f});
  for (int64_t d = 0; d < 16; ++d) sequence.value[18 * 16 + d] = 1e30f;  // infinity in f16
  bad.Write(sequence, 0, 20);
  const std::vector<float> got = bad.Attend({{&sequence, 0, 20}}, {.scale = 0.25f});
  EXPECT_EQ(std::memcmp(got.data(), want.data(), 18 * 2 * 16 * sizeof(float)), 0);
  EXPECT_FALSE(std::isfinite(got[18 * 2 * 16]));
}

// The ALiBi bias is computed from the distance between the query and a key, not as the difference
// of two large biases. So a query at position 65535 with steep slopes gives the same bits whether
// or not the keys before the last 1024 are there.
TEST(PagedAttentionTest, AlibiIsAsPreciseAtPosition65535AsNearTheStart) {
  constexpr int64_t kLength = 65536, kTail = 1024;
  const HeadShape shape{.num_heads = 2, .num_kv_heads = 1, .head_dim = 8};
  const SequenceData whole = RandomSequence(shape, kLength, 1, Blocks(kLength, 16, 0, 1));
  SequenceData tail{.blocks = Blocks(kTail, 16, 0, 1), .length = kTail};
  const auto last = [](const std::vector<float>& rows) {
    return std::vector<float>(rows.end() - std::ssize(rows) / (kLength / kTail), rows.end());
  };
  tail.query = last(whole.query);
  tail.key = last(whole.key);
  tail.value = last(whole.value);
  Owned<float> slopes = F32({2});
  // A key before the tail is at least 1024 tokens away, so its weight is about e^-256 or less. That
  // is 0 in float32.
  slopes.values = {0.5f, 0.25f};
  const auto backend = MakeBackend("auto");
  const auto attend = [&](const SequenceData& sequence) {
    PoisonedCache cache(*backend, shape, sequence.length / 16);
    cache.Write(sequence, 0, sequence.length);
    return cache.Attend({{&sequence, sequence.length - 1, sequence.length}},
                        {.alibi_slopes = slopes.view, .scale = 0.25f});
  };
  EXPECT_EQ(attend(whole), attend(tail));
}

// Layers with different windows or heads need different plans. The layers of a step alternate
// between them.
TEST(PagedAttentionTest, APlanLeavesThoseOfOtherWindowsAndHeadsAlone) {
  const auto backend = MakeBackend("auto");
  const std::vector<int32_t> lens = {2};
  const auto plan = [&](int32_t window, const AttentionHeads& heads = {1, 1, 8, 8}) {
    return *backend->Plan({.context_lens = lens,
                           .query_lens = lens,
                           .heads = heads,
                           .pattern = AttentionPattern::Window(window)});
  };
  const AttentionPlan* const whole = plan(0);
  EXPECT_NE(plan(5), whole);
  for (const AttentionHeads& other : std::initializer_list<AttentionHeads>{
           {2, 1, 8, 8}, {2, 2, 8, 8}, {1, 1, 16, 8}, {1, 1, 8, 16}}) {
    EXPECT_NE(plan(0, other), whole);
  }
  EXPECT_EQ(plan(0), whole);
}

TEST(PagedAttentionTest, ErrorsSayWhatWantedGot) {
  const auto backend = MakeBackend("auto");
  Owned<float> query = F32({1, 4, 16});
  Owned<float> cache = F32({2, 2, 3, 16, 16});
  Owned<int32_t> table = testing::I32({1, 1}, {0}), lens = testing::I32({1}, {17}),
                 starts = testing::I32({2}, {0, 1});
  const std::vector<int32_t> context = {17}, one = {1};
  AttentionPlanArgs plan_args{.context_lens = context, .query_lens = one, .heads = {4, 2, 16, 16}};
  PagedAttentionArgs args{.out = query.view,
                          .query = query.view,
                          .kv_cache = cache.view,
                          .block_table = table.view,
                          .context_lens = lens.view,
                          .query_starts = starts.view,
                          .scale = 1.0f};
  const auto message = [&] { return std::string(backend->PagedAttention(args).message()); };
  EXPECT_THAT(message(), HasSubstr("num_heads a multiple of num_kv_heads = 3, got 4"));
  args.kv_cache = TensorView(cache.values.data(), DType::kF32, {2, 2, 2, 16, 16});
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    args.scale = bad;
    EXPECT_THAT(message(), HasSubstr("scale: want finite, got "));
    args.scale = 1.0f;
    args.soft_cap = bad;
    EXPECT_THAT(message(), HasSubstr("soft_cap: want finite and >= 0, got "));
    args.soft_cap = 0.0f;
  }
  args.soft_cap = -1.0f;
  EXPECT_THAT(message(), HasSubstr("soft_cap: want finite and >= 0, got -1"));
  args.soft_cap = 0.0f;
  EXPECT_THAT(message(), HasSubstr("plan: want one from Backend::Plan, got none"));
  args.plan = *backend->Plan(plan_args);
  EXPECT_THAT(message(), HasSubstr("block_table: want blocks for 17 tokens of sequence 0, got 16"));
  args.pattern = AttentionPattern::Window(5);
  EXPECT_THAT(message(), HasSubstr("plan: want one for"));
  args.pattern = {};
  args.kv_cache = TensorView(cache.values.data(), DType::kF32, {2, 2, 2, 8, 16});
  EXPECT_THAT(message(), HasSubstr("block_size that is a multiple of 16"));
  args.kv_cache = CacheView(cache.values.data(), DType::kF32, 2, 2, 16, 16, 8, 768);
  EXPECT_THAT(message(), HasSubstr("out: want f32|f16|bf16 [1, 4, 8], got f32 [1, 4, 16]"));
  args.out = TensorView(query.values.data(), DType::kF32, {1, 4, 8});
  EXPECT_THAT(
      message(),
      HasSubstr(
          "plan: want one for 1 sequences, query f32 [1, 4, 16], kv_cache f32 [2, 2, 16, 16/8]"));
  args.kv_cache = CacheView(cache.values.data(), DType::kF32, 2, 2, 16, 16, 12, 896);
  EXPECT_THAT(message(), HasSubstr("value_dim a multiple of 8, at most 256, got 12"));
  args.kv_cache.values = TensorView(cache.values.data(), DType::kF32, {2, 2, 16, 8});
  EXPECT_THAT(message(), HasSubstr("values of kv_cache: want rows 896 elements apart, got 256"));
  args.kv_cache.values = TensorView(cache.values.data(), DType::kF16, {2, 2, 16, 8});
  EXPECT_THAT(message(), HasSubstr("values of kv_cache: want f32 [2, 2, 16, *], got f16"));
  args.query = TensorView(query.values.data(), DType::kF32, {1, 4, 12});
  EXPECT_THAT(message(), HasSubstr("key_dim a multiple of 8, at most 256, got 12"));
  plan_args.query_lens = context;
  const std::vector<int32_t> short_context = {3};
  plan_args.context_lens = short_context;
  EXPECT_THAT(std::string(backend->Plan(plan_args).status().message()),
              HasSubstr("query_len in [0, 3], got 17"));
}

}  // namespace
}  // namespace quire::kernels
