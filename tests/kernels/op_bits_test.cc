// Tests that ops of the CPU backend have exactly the bits of the numerics family, at odd sizes,
// with every weight type, cache type and option, on every ISA path of the machine.
// testdata/op_bits_cpu-2.txt has a hash of the bits for each kind of op.
// tests/engine/numerics_test.cc does the same for whole answers, and says what to do when bits
// change on purpose.
//
// ctest runs the test twice on x86-64. The second run uses the variants of libm for processors
// without FMA.

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "kernels/activation.h"
#include "kernels/expert_weights.h"
#include "kernels/ops/attention_pattern.h"
#include "kernels/quant/weight_view.h"
#include "tests/kernels/cache_testing.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/moe_testing.h"
#include "tests/kernels/sample_testing.h"
#include "tests/testing/bit_hash.h"
#include "tests/testing/test_data.h"

namespace quire::kernels {
namespace {

using testing::BitHash;
using testing::F32;
using testing::HeadShape;
using testing::MixtureShape;
using testing::Normal;
using testing::Owned;
using testing::PoisonedCache;
using testing::SequenceData;

constexpr DType kCacheTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3};

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

std::string NameOf(WeightType type) { return std::string(Traits(type).name); }

// Products of 1 to 19 rows with 38 outputs, or 19 if the activation is gated.
std::string LinearLines(Backend& backend) {
  constexpr int64_t kOutputs = 38;
  std::string lines;
  for (const WeightType type : testing::kAllWeightTypes) {
    const int64_t cols = testing::IsFloat(type) ? 77 : 3 * Traits(type).block_elements;
    const auto weight = testing::RandomWeight(type, kOutputs, cols, 1);
    const auto prepared = *backend.PrepareWeight({&weight.view, 1});
    const Owned<float> bias = F32({kOutputs}, Normal(2, kOutputs));
    BitHash hash;
    for (const int64_t rows : {1, 2, 3, 5, 9, 19}) {
      const Owned<float> input = F32({rows, cols}, Normal(3, rows * cols));
      for (const Activation activation :
           {Activation::kNone, Activation::kGelu, Activation::kGeluTanh, Activation::kSiluMul,
            Activation::kGeluTanhMul, Activation::kClampedSiluMul}) {
        const int64_t outputs = IsGated(activation) ? kOutputs / 2 : kOutputs;
        const Owned<float> residual = F32({rows, outputs}, Normal(4, rows * outputs));
        const Owned<float> out = F32({rows, outputs});
        const bool plain = activation == Activation::kNone;
        ExpectOk(backend.Linear({.out = out.view,
                                 .input = input.view,
                                 .weight = prepared.get(),
                                 .bias = bias.view,
                                 .residual = plain ? TensorView() : residual.view,
                                 .activation = activation,
                                 .activation_limit = 0.75f,
                                 .soft_cap = plain ? 2.5f : 0.0f}));
        hash.AddAll(out.values);
      }
    }
    lines += hash.Line("linear " + NameOf(type));
    BitHash rows_of_tokens;
    const Owned<int32_t> ids = testing::I32({3}, {0, 37, 13});
    const Owned<float> embedded = F32({3, cols});
    ExpectOk(backend.Embed(
        {.out = embedded.view, .token_ids = ids.view, .weight = prepared.get(), .scale = 1.7f}));
    rows_of_tokens.AddAll(embedded.values);
    lines += rows_of_tokens.Line("embed " + NameOf(type));
  }
  return lines;
}

std::string MoeLines(Backend& backend) {
  std::string lines;
  for (const WeightType type : {WeightType::kF32, WeightType::kBF16, WeightType::kQ4_1,
                                WeightType::kQ8_0, WeightType::kQ4_K, WeightType::kF8E4M3Scaled}) {
    const bool blocks = !testing::IsFloat(type);
    BitHash hash;
    for (const ExpertWeights kind : {ExpertWeights::kSoftmaxOfChosen, ExpertWeights::kSoftmaxOfAll,
                                     ExpertWeights::kLogistic}) {
      for (const bool scale_input : {false, true}) {
        const MixtureShape shape{.num_experts = 5,
                                 .hidden = blocks ? 256 : 45,
                                 .intermediate = blocks ? 256 : 37,
                                 .num_chosen = 3,
                                 .weights = kind,
                                 .weights_scale_input = scale_input,
                                 .biases = true,
                                 .limit = scale_input ? 0.0f : 0.75f};
        const testing::TestMixture mixture(type, shape, 5);
        const auto weights = mixture.Prepare(backend);
        hash.AddAll(RunMixture(backend, weights, shape, Normal(6, 7 * shape.hidden),
                               Normal(7, 7 * shape.hidden)));
      }
    }
    lines += hash.Line("moe " + NameOf(type));
  }
  return lines;
}

std::string BiasedChoiceLine(Backend& backend) {
  const MixtureShape shape{.num_experts = 21,
                           .hidden = 45,
                           .intermediate = 37,
                           .num_chosen = 5,
                           .weights = ExpertWeights::kNormedLogistic,
                           .choice_bias = true};
  const testing::TestMixture mixture(WeightType::kF32, shape, 8);
  const auto weights = mixture.Prepare(backend);
  BitHash hash;
  hash.AddAll(RunMixture(backend, weights, shape, Normal(9, 7 * shape.hidden),
                         Normal(10, 7 * shape.hidden)));
  return hash.Line("moe biased choice");
}

std::string NormLines(Backend& backend) {
  std::string lines;
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    BitHash hash;
    for (const int64_t size : {1, 7, 16, 45, 577}) {
      const Owned<float> weight = F32({size}, Normal(8, size)), bias = F32({size}, Normal(9, size));
      const Owned<float> input = F32({3, size}, Normal(10, 3 * size)), out = F32({3, size});
      const Owned<float> residual = F32({3, size}, Normal(11, 3 * size));
      for (const bool adds : {false, true}) {
        ExpectOk(backend.Norm({.out = out.view,
                               .input = input.view,
                               .weight = weight.view,
                               .bias = kind == NormKind::kLayerNorm ? bias.view : TensorView(),
                               .residual = adds ? residual.view : TensorView(),
                               .kind = kind}));
        hash.AddAll(out.values);
      }
      hash.AddAll(residual.values);
    }
    lines += hash.Line(kind == NormKind::kRmsNorm ? "rms norm" : "layer norm");
  }
  return lines;
}

// Adds the memory of the cache to `hash` in 16-bit words: elements of f16 or bf16, halves of
// float32 elements, or pairs of e4m3 elements.
void AddCache(const PoisonedCache& cache, BitHash& hash) {
  const auto* words = static_cast<const uint16_t*>(cache.view().keys.raw());
  for (int64_t i = 0; i < cache.bytes() / 2; ++i) hash.AddBits(words[i]);
}

// Runs QkvPost with and without its options, then ShiftKeys. The RoPE table has random numbers.
std::string QkvLines(Backend& backend) {
  constexpr int64_t kTokens = 37;
  std::string lines;
  for (const DType dtype : kCacheTypes) {
    BitHash hash;
    for (const int64_t head_dim : {8, 24, 72}) {
      const HeadShape shape{
          .num_heads = 6, .num_kv_heads = 2, .head_dim = head_dim, .dtype = dtype};
      const SequenceData sequence = testing::RandomSequence(shape, kTokens, 12, {4, 0, 2});
      const int64_t rope_dim = head_dim == 24 ? 16 : head_dim, row = 10 * head_dim;
      const Owned<float> table = F32({kTokens, rope_dim / 2, 2}, Normal(13, kTokens * rope_dim));
      const Owned<float> scales = F32({kTokens}, Normal(14, kTokens));
      const Owned<float> bias = F32({row}, Normal(15, row));
      const Owned<float> query_norm = F32({head_dim}, Normal(16, head_dim));
      const Owned<float> key_norm = F32({head_dim}, Normal(17, head_dim));
      for (const RopeLayout layout :
           {RopeLayout::kNone, RopeLayout::kInterleaved, RopeLayout::kHalfSplit}) {
        for (const bool options : {false, true}) {
          QkvPostArgs args = {.rope_table = table.view, .rope_layout = layout};
          if (options) {
            args.query_scales = scales.view;
            args.bias = bias.view;
            args.clip = 1.25f;
            args.qk_norm = {.query_weight = query_norm.view, .key_weight = key_norm.view};
          }
          PoisonedCache cache(backend, shape, 5);
          hash.AddAll(cache.Write(sequence, 0, kTokens, args));
          if (layout != RopeLayout::kNone) {
            const std::array<KeyShift, 2> shifts = {KeyShift{4, 5}, KeyShift{0, 33}};
            ExpectOk(backend.ShiftKeys({.kv_cache = cache.view(),
                                        .rope_table = table.view,
                                        .rope_layout = layout,
                                        .table_scale = 1.25f,
                                        .shifts = shifts}));
          }
          AddCache(cache, hash);
        }
      }
    }
    lines += hash.Line(absl::StrCat("qkv ", std::string(Name(dtype))));
  }
  return lines;
}

// Adds the outputs of a sequence of 331 tokens: three chunks of the prompt, then decodes of the
// last three tokens.
void AddAttention(PoisonedCache& cache, const SequenceData& sequence,
                  const PagedAttentionArgs& args, BitHash& hash) {
  hash.AddAll(cache.Attend({{&sequence, 0, 19}, {&sequence, 256, 257}}, args));
  hash.AddAll(cache.Attend({{&sequence, 317, 328}}, args));
  for (int64_t t = 328; t < 331; ++t) hash.AddAll(cache.Attend({{&sequence, t, t + 1}}, args));
}

std::string AttentionLines(Backend& backend) {
  constexpr int64_t kTokens = 331;
  std::string lines;
  for (const DType dtype : kCacheTypes) {
    BitHash hash, blocks_hash;
    for (const int64_t head_dim : {8, 40, 72}) {
      const HeadShape shape{
          .num_heads = 6, .num_kv_heads = 2, .head_dim = head_dim, .dtype = dtype};
      std::vector<int32_t> blocks(kTokens / shape.block_size + 1);
      for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
      const SequenceData sequence = testing::RandomSequence(shape, kTokens, 18, blocks);
      PoisonedCache cache(backend, shape, std::ssize(blocks));
      cache.Write(sequence, 0, kTokens);
      const Owned<float> slopes = F32({6}, {0.5f, 0.25f, 0.125f, 0.7f, 0.35f, 0.175f});
      const Owned<float> sinks = F32({6}, Normal(19, 6));
      const PagedAttentionArgs plain = {.scale = 0.3f};
      std::vector<PagedAttentionArgs> cases(8, plain);
      cases[1].pattern = AttentionPattern::Window(37);
      cases[2].pattern = AttentionPattern::Chunk(45);
      cases[3].alibi_slopes = slopes.view;
      cases[4].alibi_slopes = slopes.view;
      cases[4].alibi_is_rounded = true;
      cases[5].sinks = sinks.view;
      cases[6].soft_cap = 2.5f;
      cases[7] = {.alibi_slopes = slopes.view,
                  .sinks = sinks.view,
                  .scale = 0.3f,
                  .soft_cap = 2.5f,
                  .pattern = AttentionPattern::Window(100)};
      for (const PagedAttentionArgs& args : cases) AddAttention(cache, sequence, args, hash);
      PagedAttentionArgs in_blocks = plain;
      in_blocks.pattern = AttentionPattern::Blocks(64, 2, 3, 1);
      AddAttention(cache, sequence, in_blocks, blocks_hash);
    }
    lines += hash.Line(absl::StrCat("attention ", std::string(Name(dtype))));
    lines += blocks_hash.Line(absl::StrCat("attention in blocks ", std::string(Name(dtype))));
  }
  return lines;
}

// QkvPost and attention with values that are longer and shorter than the keys.
std::string UnequalDimLines(Backend& backend) {
  constexpr int64_t kTokens = 331;
  std::string lines;
  for (const DType dtype : kCacheTypes) {
    BitHash hash;
    for (const auto& [head_dim, value_dim] : {std::pair(8, 72), {40, 24}, {72, 8}}) {
      const HeadShape shape{.num_heads = 6,
                            .num_kv_heads = 2,
                            .head_dim = head_dim,
                            .dtype = dtype,
                            .other_value_dim = value_dim};
      std::vector<int32_t> blocks(kTokens / shape.block_size + 1);
      for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
      const SequenceData sequence = testing::RandomSequence(shape, kTokens, 20, blocks);
      const Owned<float> table = F32({kTokens, 4, 2}, Normal(21, kTokens * 8));
      PoisonedCache cache(backend, shape, std::ssize(blocks));
      hash.AddAll(cache.Write(sequence, 0, kTokens,
                              {.rope_table = table.view, .rope_layout = RopeLayout::kHalfSplit}));
      AddCache(cache, hash);
      hash.AddAll(cache.Attend({{&sequence, 0, 19}, {&sequence, 256, 257}}, {.scale = 0.3f}));
      hash.AddAll(cache.Attend({{&sequence, 317, 328}},
                               {.scale = 0.3f, .pattern = AttentionPattern::Window(37)}));
      hash.AddAll(cache.Attend({{&sequence, 330, 331}}, {.scale = 0.3f}));
    }
    lines += hash.Line(absl::StrCat("unequal dims ", std::string(Name(dtype))));
  }
  return lines;
}

// Draws and log-probabilities of rows whose length is no multiple of a block.
std::string SampleLines(Backend& backend) {
  BitHash hash;
  for (const int64_t num_ids : {90, 301, 1037}) {
    for (const char c : ToText(testing::SampleTwice(backend, num_ids))) hash.AddBits(c);
  }
  return hash.Line("sample");
}

TEST(OpBitsTest, EveryIsaPathHasTheBitsOfTheFamily) {
  for (const std::string& isa : testing::IsaPaths()) {
    SCOPED_TRACE(isa);
    const auto backend = testing::MakeBackend(isa, 2);
    const std::string got = LinearLines(*backend) + MoeLines(*backend) +
                            BiasedChoiceLine(*backend) + NormLines(*backend) + QkvLines(*backend) +
                            AttentionLines(*backend) + UnequalDimLines(*backend) +
                            SampleLines(*backend);
    const std::string file = "op_bits_" + backend->info().numerics + ".txt";
    const std::string want = testing::ReadFile(testing::TestSourcePath("kernels/testdata/" + file));
    if (got != want) std::ofstream(::testing::TempDir() + file) << got;
    EXPECT_EQ(got, want) << "written to " << ::testing::TempDir() << file;
  }
}

}  // namespace
}  // namespace quire::kernels
