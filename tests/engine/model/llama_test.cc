#include "engine/model/llama.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/model/rope_table.h"
#include "kernels/backend_registry.h"
#include "tests/engine/model/llama_goldens.h"
#include "tests/testing/in_memory_weights.h"
#include "tests/testing/model_steps.h"

namespace quire::engine {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int64_t kNumBlocks = 32;

// One model on one backend with a cache of its own, poisoned with NaN.
class Runner {
 public:
  explicit Runner(const GoldenCase& golden, bool gguf_naming = false,
                  const kernels::BackendOptions& options = {.name = "cpu", .num_threads = 2})
      : backend_(*kernels::CreateBackend(options)) {
    ModelConfig config = golden.config;
    config.rope.layout =
        gguf_naming ? kernels::RopeLayout::kInterleaved : kernels::RopeLayout::kHalfSplit;
    weights_ = testing::MakeTinyLlama(golden.shape, gguf_naming);
    model_ = *CreateLlama(config, weights_,
                          gguf_naming ? TensorNaming::kGguf : TensorNaming::kHuggingFace, *backend_,
                          {.max_tokens = 128,
                           .max_seqs = 8,
                           .max_logit_rows = 128,
                           .max_model_len = 256,
                           .block_size = kBlockSize});
    cache_ = *KvCache::Create(*backend_,
                              {.num_layers = config.num_hidden_layers,
                               .num_kv_heads = config.num_key_value_heads,
                               .head_dim = config.head_dim,
                               .block_size = kBlockSize,
                               .dtype = kernels::DType::kF32},
                              kNumBlocks);
    const kernels::TensorView blocks = cache_.blocks();
    std::fill_n(blocks.data<float>(), blocks.num_elements(), std::nanf(""));
  }

  Logits Step(const std::vector<testing::StepChunk>& chunks) {
    const ModelInput input = testing::MakeStep(chunks, kBlockSize);
    const absl::StatusOr<kernels::TensorView> logits = model_->Forward(input, cache_);
    EXPECT_TRUE(logits.ok()) << logits.status();
    return Logits(logits->data<float>(), logits->data<float>() + logits->num_elements());
  }

  // The whole prompt, `chunk` tokens a step, in blocks that are not neighbours.
  Logits Prefill(const std::vector<int32_t>& ids, int64_t chunk) {
    Logits all;
    const int64_t size = static_cast<int64_t>(ids.size());
    for (int64_t begin = 0; begin < size; begin += chunk) {
      const Logits part = Step({{.tokens = &ids,
                                 .begin = begin,
                                 .count = std::min(chunk, size - begin),
                                 .blocks = kBlocks}});
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  static inline const std::vector<int32_t> kBlocks = {7, 2, 19, 4, 30};

 private:
  std::unique_ptr<kernels::Backend> backend_;
  testing::InMemoryWeights weights_;
  std::unique_ptr<Model> model_;
  KvCache cache_;
};

class LlamaGoldenTest : public ::testing::TestWithParam<bool> {};

TEST_P(LlamaGoldenTest, LogitsAndArgmaxAgreeWithTransformers) {
  for (const GoldenCase& golden : ReadGoldens()) {
    SCOPED_TRACE(golden.name);
    const Logits logits = Runner(golden, GetParam()).Prefill(golden.ids, 128);
    ASSERT_EQ(logits.size(), golden.logits.size());
    double worst = 0.0, smallest_margin = std::numeric_limits<double>::infinity();
    int64_t compared = 0;
    const int64_t vocab = golden.config.vocab_size;
    for (size_t row = 0; row < golden.ids.size(); ++row) {
      const float* want = golden.logits.data() + row * vocab;
      const float* got = logits.data() + row * vocab;
      for (int64_t i = 0; i < vocab; ++i)
        worst = std::max(worst, std::abs(double{want[i]} - got[i]));
      std::vector<float> sorted(want, want + vocab);
      std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
      const double margin = double{sorted[0]} - sorted[1];
      smallest_margin = std::min(smallest_margin, margin);
      if (margin <= 2 * golden.bound) continue;
      ++compared;
      EXPECT_EQ(std::max_element(got, got + vocab) - got,
                std::max_element(want, want + vocab) - want)
          << "position " << row;
    }
    EXPECT_LE(worst, golden.bound);
    EXPECT_GE(compared * 100, static_cast<int64_t>(golden.ids.size()) * 99);
    std::printf("%-14s worst %.2e bound %.2e positions %ld of %zu smallest margin %.2e\n",
                golden.name.c_str(), worst, golden.bound, static_cast<long>(compared),
                golden.ids.size(), smallest_margin);
  }
}

INSTANTIATE_TEST_SUITE_P(Naming, LlamaGoldenTest, ::testing::Values(false, true),
                         [](const auto& naming) { return naming.param ? "Gguf" : "HuggingFace"; });

TEST(LlamaTest, ChunksGiveTheBitsOfTheWholePrompt) {
  for (const GoldenCase& golden : ReadGoldens()) {
    SCOPED_TRACE(golden.name);
    const Logits whole = Runner(golden).Prefill(golden.ids, 128);
    for (const int64_t chunk : {1, 7, 64}) {
      EXPECT_EQ(Runner(golden).Prefill(golden.ids, chunk), whole) << "chunks of " << chunk;
    }
  }
}

TEST(LlamaTest, ASequenceAmongOthersGivesTheBitsOfItAlone) {
  for (const GoldenCase& golden : ReadGoldens()) {
    SCOPED_TRACE(golden.name);
    const Logits alone = Runner(golden).Prefill(golden.ids, 128);
    const std::vector<int32_t> other(golden.ids.rbegin(), golden.ids.rend());
    Runner runner(golden);
    // Two prefills of different progress and a decode share the steps.
    runner.Step({{.tokens = &other, .begin = 0, .count = 33, .blocks = {1, 3, 5}}});
    const Logits first =
        runner.Step({{.tokens = &golden.ids, .begin = 0, .count = 41, .blocks = Runner::kBlocks},
                     {.tokens = &other, .begin = 33, .count = 1, .blocks = {1, 3, 5}}});
    const Logits second =
        runner.Step({{.tokens = &other, .begin = 0, .count = 17, .blocks = {8, 9}},
                     {.tokens = &other, .begin = 34, .count = 1, .blocks = {1, 3, 5}},
                     {.tokens = &golden.ids, .begin = 41, .count = 29, .blocks = Runner::kBlocks}});
    const int64_t vocab = golden.config.vocab_size;
    Logits together(first.begin(), first.begin() + 41 * vocab);
    together.insert(together.end(), second.begin() + 18 * vocab, second.end());
    EXPECT_EQ(together, alone);
  }
}

TEST(LlamaTest, ThreadsAndIsaPathsGiveTheSameBits) {
  const GoldenCase golden = ReadGoldens().front();
  const Logits expected = Runner(golden).Prefill(golden.ids, 128);
  int paths = 0;
  for (const char* isa : {"portable", "avx2", "avx512", "amx"}) {
    for (const int threads : {1, 3}) {
      const kernels::BackendOptions options{.name = "cpu", .cpu_isa = isa, .num_threads = threads};
      if (!kernels::CreateBackend(options).ok()) continue;
      ++paths;
      EXPECT_EQ(Runner(golden, false, options).Prefill(golden.ids, 128), expected)
          << isa << " " << threads;
    }
  }
  EXPECT_GE(paths, 2) << "the portable path is on every machine";
}

TEST(LlamaTest, WeightBytesCountWhatStaysMappedToo) {
  const GoldenCase golden = ReadGoldens().front();
  const testing::InMemoryWeights weights = testing::MakeTinyLlama(golden.shape);
  for (const bool pack : {true, false}) {
    const auto backend = *kernels::CreateBackend({.name = "cpu", .pack_weights = pack});
    const auto model = CreateLlama(golden.config, weights, TensorNaming::kHuggingFace, *backend,
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

TEST(LlamaTest, NamesTheTensorThatIsMissing) {
  GoldenCase golden = ReadGoldens().front();
  golden.config.num_hidden_layers += 1;
  const auto backend = *kernels::CreateBackend({.name = "cpu"});
  const testing::InMemoryWeights weights = testing::MakeTinyLlama(golden.shape);
  const auto model = CreateLlama(
      golden.config, weights, TensorNaming::kHuggingFace, *backend,
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

TEST(RopeTableTest, DivisorsScaleEachFrequency) {
  const RopeConfig rope{.theta = 10000.0, .rope_dim = 4, .frequency_divisors = {1.0f, 8.0f}};
  EXPECT_THAT(RopeFrequencies(rope), ::testing::ElementsAre(1.0, 0.01 / 8.0));
}

}  // namespace
}  // namespace quire::engine
