#include "engine/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/model/rope_table.h"
#include "kernels/backend_registry.h"
#include "tests/engine/model/golden_models.h"

namespace quire::engine {
namespace {

using testing::GoldenModel;
using testing::GoldenRunner;
using testing::Logits;
using testing::ModelRunner;
using testing::ReadGoldenModels;

std::unique_ptr<kernels::Backend> Cpu(const kernels::BackendOptions& options = {.name = "cpu",
                                                                                .num_threads = 2}) {
  return *kernels::CreateBackend(options);
}

TEST(DecoderTest, LogitsAndArgmaxAgreeWithTheReference) {
  for (const GoldenModel& golden : ReadGoldenModels()) {
    SCOPED_TRACE(golden.name);
    testing::ExpectAgreement(golden.name, golden, GoldenRunner(golden, Cpu())->Prefill(golden.ids));
  }
}

TEST(DecoderTest, ChunksGiveTheBitsOfTheWholePrompt) {
  for (const GoldenModel& golden : ReadGoldenModels()) {
    SCOPED_TRACE(golden.name);
    const Logits whole = GoldenRunner(golden, Cpu())->Prefill(golden.ids);
    for (const int64_t chunk : {1, 7, 64}) {
      EXPECT_EQ(GoldenRunner(golden, Cpu())->Prefill(golden.ids, chunk), whole)
          << "chunks of " << chunk;
    }
  }
}

TEST(DecoderTest, ASequenceAmongOthersGivesTheBitsOfItAlone) {
  for (const GoldenModel& golden : ReadGoldenModels()) {
    SCOPED_TRACE(golden.name);
    const Logits alone = GoldenRunner(golden, Cpu())->Prefill(golden.ids);
    const std::vector<int32_t> other(golden.ids.rbegin(), golden.ids.rend());
    GoldenRunner runner(golden, Cpu());
    // The second step has a prefill and a decode. The third step has two prefills, at different
    // positions, and a decode.
    runner->Step({{.tokens = &other, .begin = 0, .count = 33, .blocks = {1, 3, 5}}});
    const Logits first = runner->Step(
        {{.tokens = &golden.ids, .begin = 0, .count = 41, .blocks = ModelRunner::kBlocks},
         {.tokens = &other, .begin = 33, .count = 1, .blocks = {1, 3, 5}}});
    const Logits second = runner->Step(
        {{.tokens = &other, .begin = 0, .count = 17, .blocks = {8, 9}},
         {.tokens = &other, .begin = 34, .count = 1, .blocks = {1, 3, 5}},
         {.tokens = &golden.ids, .begin = 41, .count = 29, .blocks = ModelRunner::kBlocks}});
    const int64_t vocab = golden.config.vocab_size;
    Logits together(first.begin(), first.begin() + 41 * vocab);
    together.insert(together.end(), second.begin() + 18 * vocab, second.end());
    EXPECT_EQ(together, alone);
  }
}

// Computes the rest of a prompt after a prefix hit. The hit's whole blocks were computed for
// another prompt, which begins with the same tokens. If the hit ends inside a block, the step
// starts from a copy of that block. After the end of the hit, the copy holds tokens of the other
// prompt.
TEST(DecoderTest, AHitAtAnyPlaceGivesTheBitsOfTheWholePrompt) {
  constexpr int64_t kBlockSize = ModelRunner::kLimits.block_size;
  for (const GoldenModel& golden : ReadGoldenModels()) {
    SCOPED_TRACE(golden.name);
    const Logits whole = GoldenRunner(golden, Cpu())->Prefill(golden.ids);
    for (const int64_t hit : {17, 32, 41}) {
      std::vector<int32_t> other = golden.ids;
      for (size_t i = static_cast<size_t>(hit); i < other.size(); ++i) {
        other[i] = static_cast<int32_t>((other[i] + 1) % golden.config.vocab_size);
      }
      GoldenRunner runner(golden, Cpu());
      runner->Prefill(other);
      std::vector<int32_t> blocks = {11, 12, 13, 14, 15};
      const auto shared = static_cast<size_t>(hit / kBlockSize);
      std::copy_n(ModelRunner::kBlocks.begin(), shared, blocks.begin());
      std::vector<kernels::BlockCopy> copies;
      if (hit % kBlockSize != 0) copies.push_back({ModelRunner::kBlocks[shared], blocks[shared]});
      const int64_t rest = std::ssize(golden.ids) - hit;
      EXPECT_EQ(runner->Step({{&golden.ids, hit, rest, blocks}}, copies),
                Logits(whole.end() - rest * golden.config.vocab_size, whole.end()))
          << "a hit of " << hit;
    }
  }
}

TEST(DecoderTest, ThreadsAndIsaPathsGiveTheSameBits) {
  const GoldenModel golden = ReadGoldenModels().front();
  const Logits expected = GoldenRunner(golden, Cpu())->Prefill(golden.ids);
  int paths = 0;
  for (const char* isa : {"portable", "avx2", "avx512", "amx"}) {
    for (const int threads : {1, 3}) {
      const kernels::BackendOptions options{.name = "cpu", .cpu_isa = isa, .num_threads = threads};
      if (!kernels::CreateBackend(options).ok()) continue;
      ++paths;
      EXPECT_EQ(GoldenRunner(golden, Cpu(options))->Prefill(golden.ids), expected)
          << isa << " " << threads;
    }
  }
  EXPECT_GE(paths, 2) << "the portable path is on every machine";
}

TEST(DecoderTest, WeightBytesCountWhatStaysMappedToo) {
  const GoldenModel golden = ReadGoldenModels().front();
  for (const bool pack : {true, false}) {
    const auto backend = *kernels::CreateBackend({.name = "cpu", .pack_weights = pack});
    const auto model = CreateDecoder(golden.config, *golden.weights, golden.names, *backend,
                                     {.max_tokens = 8,
                                      .max_seqs = 1,
                                      .max_logit_rows = 1,
                                      .max_model_len = 32,
                                      .block_size = 16});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_GE((*model)->weight_bytes(), 4 * (*model)->num_parameters())
        << (pack ? "packed" : "mapped");
  }
}

TEST(DecoderTest, NamesTheTensorThatItWouldLeaveOut) {
  const GoldenModel golden = ReadGoldenModels().front();
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.0.mlp.experts"}) {
    testing::InMemoryWeights weights = *golden.weights;
    weights.AddRandom(name, {64});
    const auto backend = *kernels::CreateBackend({.name = "cpu"});
    const auto model =
        CreateDecoder(golden.config, weights, golden.names, *backend, ModelRunner::kLimits);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(model.status().message()), ::testing::HasSubstr(name));
  }
}

TEST(DecoderTest, NamesTheTensorThatIsMissing) {
  GoldenModel golden = ReadGoldenModels().front();
  golden.config.layers.push_back(golden.config.layers.back());
  const auto backend = *kernels::CreateBackend({.name = "cpu"});
  const auto model = CreateDecoder(
      golden.config, *golden.weights, golden.names, *backend,
      {.max_tokens = 8, .max_seqs = 1, .max_logit_rows = 1, .max_model_len = 32, .block_size = 16});
  EXPECT_EQ(model.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(model.status().message()),
              ::testing::HasSubstr("model.layers.2.input_layernorm.weight"));
}

TEST(RopeTableTest, UnscaledAnglesAreThePublishedOnes) {
  const std::vector<float> table = MakeRopeTable({.theta = 10000.0, .rope_dim = 4}, 3);
  ASSERT_EQ(table.size(), 3 * 2 * 2);
  EXPECT_FLOAT_EQ(table[0], 1.0f);
  EXPECT_FLOAT_EQ(table[1], 0.0f);
  EXPECT_FLOAT_EQ(table[2 * 4 + 0], std::cos(2.0));
  EXPECT_FLOAT_EQ(table[2 * 4 + 3], std::sin(0.02));
}

TEST(RopeTableTest, TheServedLengthChoosesTheFactorsOfLongRope) {
  const RopeConfig rope{.theta = 10000.0,
                        .rope_dim = 4,
                        .scaling = RopeScaling::kLongRope,
                        .original_max_position_embeddings = 32,
                        .attention_factor = 1.5,
                        .short_factors = {1.0, 2.0},
                        .long_factors = {4.0, 8.0}};
  EXPECT_THAT(RopeFrequencies(rope, 32), ::testing::ElementsAre(1.0, 0.01 / 2.0));
  EXPECT_THAT(RopeFrequencies(rope, 33), ::testing::ElementsAre(0.25, 0.01 / 8.0));
  EXPECT_FLOAT_EQ(MakeRopeTable(rope, 1)[0], 1.5f);
}

TEST(RopeTableTest, DivisorsScaleEachFrequency) {
  const RopeConfig rope{.theta = 10000.0, .rope_dim = 4, .frequency_divisors = {1.0f, 8.0f}};
  EXPECT_THAT(RopeFrequencies(rope, 1), ::testing::ElementsAre(1.0, 0.01 / 8.0));
}

}  // namespace
}  // namespace quire::engine
