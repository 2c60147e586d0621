#include "convert/converter.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/frontend/token_ids.h"
#include "engine/frontend/tokenizer_loader.h"
#include "engine/model/cache_scales.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "files/ggml_types.h"
#include "files/model_files.h"
#include "kernels/backend_registry.h"
#include "tests/engine/model/golden_models.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/scaled_checkpoint.h"
#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"

namespace quire::convert {
namespace {

using kernels::WeightType;
using ::testing::ElementsAre;
using testing::GoldenModel;
using testing::GoldenRunner;
using ::testing::HasSubstr;
using testing::Logits;
using testing::ModelRunner;
using testing::TempDirectory;

absl::StatusOr<ConvertReport> Convert(const GoldenModel& golden, const std::string& path,
                                      ConvertOptions options) {
  options.for_quire_alone = true;
  return ConvertWeights(golden.config, golden.names, *golden.weights, files::GgufValues(), path,
                        options);
}

Logits LogitsOfFile(const std::string& path, const std::vector<int32_t>& ids) {
  const files::OpenedModel files = *files::OpenModelFiles(path);
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 2});
  const absl::StatusOr<engine::ModelConfig> config = engine::ReadModelConfig(files);
  EXPECT_TRUE(config.ok()) << config.status();
  ModelRunner runner(*engine::CreateModel(*config, files, *backend, ModelRunner::kLimits),
                     *backend);
  return runner.Prefill(ids);
}

// Returns the models that the converter must refuse. The key is the name of a model. The value is a
// property that the error must name: GGUF cannot express that property, or readers of GGUF would
// understand it differently.
const std::map<std::string, std::string>& Refused() {
  static const auto* const refused = new std::map<std::string, std::string>{
      {"mpt_scale", "attention_scale"},
      {"falcon_rw", "residual"},
      {"falcon_rw_six_heads", "residual"},
      {"neox_serial", "activation"},
      {"rope_dynamic", "rope_scaling"},
      {"mistral_window", "sliding_window"},
      {"mixtral_window", "sliding_window"},
      {"qwen3_moe", "norm_topk_prob"},
      {"qwen2_windows", "sliding_window"},
      {"qwen3_windows", "sliding_window"},
      {"gemma3", "sliding_window"},
      {"gemma3_pattern", "attention_scale"},
      {"gemma3_scaled", "sliding_window"},
      {"gemma3_untied", "sliding_window"},
      {"gemma3_images_new", "sliding_window"},
      {"gpt2_untied", "activation"},
      {"baichuan", "block_count"},
      {"baichuan_rope", "block_count"},
      {"phi3_longrope", "rope_scaling"},
      {"phi3_longrope_within", "rope_scaling"},
      {"phi4_longrope", "rope_scaling"},
      {"qwen3_moe_dense", "norm_topk_prob"},
      {"qwen3_moe_step", "num_experts"},
      {"gemma2_low_caps", "attention_scale"},
      {"gemma2_cap_of_scores", "final_logit_softcapping"},
      {"gemma2_cap_of_logits", "attn_logit_softcapping"},
      {"mimo_v2_flash", "mimo_v2_flash"},
      {"mimo_v2_flash_long_values", "mimo_v2_flash"},
      {"gpt_oss", "gpt_oss"},
      {"gpt_oss_wide_heads", "gpt_oss"},
      {"gpt_oss_clamped", "gpt_oss"},
      {"phi3_small", "phi3_small"},
      {"phi3_small_homo_head", "phi3_small"},
      {"phi3_small_longrope", "phi3_small"},
      {"llama4", "sliding_window"},
      {"llama4_interleaved", "sliding_window"},
      {"llama4_lists", "sliding_window"},
      {"llama4_images", "sliding_window"},
      {"smollm3_windows", "sliding_window"},
      {"smollm3_biases", "sliding_window"},
  };
  return *refused;
}

TEST(ConverterTest, TheGgufFileIsTheModelOrIsRefusedByName) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/model.gguf";
  std::set<std::string> architectures;
  for (const GoldenModel& golden : testing::ReadGoldenModels()) {
    SCOPED_TRACE(golden.name);
    const absl::StatusOr<ConvertReport> report =
        Convert(golden, path, {.type = WeightType::kF32, .num_threads = 2});
    if (const auto refused = Refused().find(golden.name); refused != Refused().end()) {
      const bool written = golden.config.architecture != refused->second;
      EXPECT_EQ(report.status().code(),
                written ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnimplemented)
          << report.status();
      EXPECT_THAT(std::string(report.status().message()), HasSubstr(refused->second));
      EXPECT_FALSE(std::filesystem::exists(path));
      continue;
    }
    EXPECT_TRUE(report.ok()) << report.status();
    if (!report.ok()) continue;
    EXPECT_EQ(report->relative_error, 0.0);
    testing::ExpectAgreement(golden.name + " as GGUF", golden, LogitsOfFile(path, golden.ids));
    architectures.insert(golden.config.architecture);
    std::filesystem::remove(path);
  }
  EXPECT_GE(architectures.size(), 4U);
}

TEST(ConverterTest, WhereNoProductChangesItsOrderTheBitsAreTheSame) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/model.gguf";
  int compared = 0;
  const std::set<std::string> names = {"mpt_gqa", "falcon_7b", "gpt2", "gemma3"};
  for (GoldenModel& golden : testing::ReadGoldenFamilies()) {
    if (!names.contains(golden.name)) continue;
    SCOPED_TRACE(golden.name);
    // In llama.cpp's Gemma 3, every sixth layer has no window and all other layers have one. The
    // test changes the config to match.
    if (golden.name == "gemma3") {
      for (size_t i = 0; i < golden.config.layers.size(); ++i) {
        engine::AttentionSpec& attention = golden.config.layers[i].attention;
        attention.pattern = kernels::AttentionPattern::Window(i % 6 == 5 ? 0 : 32);
        attention.rope = attention.pattern.sees_all() ? 0 : 1;
      }
    }
    ASSERT_TRUE(Convert(golden, path, {.type = WeightType::kF32}).ok());
    EXPECT_EQ(LogitsOfFile(path, golden.ids),
              GoldenRunner(golden, *kernels::CreateBackend({.name = "cpu"}))->Prefill(golden.ids));
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

// The tokenizer of the written file encodes the prompt.
TEST(ConverterTest, TheBundledModelGivesTheBitsOfItsDirectory) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/stories.gguf";
  const std::string bundled = testing::TestSourcePath("../models/quire-stories");
  const files::OpenedModel model = *files::OpenModelFiles(bundled);
  const auto report = ConvertToGguf(model, path, {.type = WeightType::kBF16, .num_threads = 2});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->warnings.empty());
  const files::OpenedModel file = *files::OpenModelFiles(path);
  EXPECT_EQ(*file.gguf->String("general.name"), "quire-stories");
  const auto tokenizer = *engine::LoadTokenizer(file);
  const std::vector<int32_t> ids = engine::Ids(*tokenizer->Encode("Once upon a time", {}));
  ASSERT_GT(ids.size(), 4U);
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 2});
  ModelRunner runner(
      *engine::CreateModel(*engine::ReadModelConfig(model), model, *backend, ModelRunner::kLimits),
      *backend);
  EXPECT_EQ(LogitsOfFile(path, ids), runner.Prefill(ids));
}

// The scales of an fp8 cache have no place among the tensors of GGUF. They are metadata.
TEST(ConverterTest, TheScalesOfAnFp8CacheAreKept) {
  const TempDirectory directory, checkpoint;
  const std::string path = directory.path() + "/scaled.gguf";
  testing::WriteScaledCheckpoint(checkpoint);
  const files::OpenedModel model = *files::OpenModelFiles(checkpoint.path());
  const auto report = ConvertToGguf(model, path, {.type = WeightType::kBF16, .num_threads = 2});
  ASSERT_TRUE(report.ok()) << report.status();
  const files::OpenedModel file = *files::OpenModelFiles(path);
  engine::ModelConfig from = *engine::ReadModelConfig(model), to = *engine::ReadModelConfig(file);
  ASSERT_TRUE(engine::ReadCacheScales(model, from).ok());
  ASSERT_TRUE(engine::ReadCacheScales(file, to).ok());
  for (int64_t layer = 0; layer < 6; ++layer) {
    const auto i = static_cast<size_t>(layer);
    EXPECT_EQ(from.layers[i].attention.cache_scales, testing::ScalesOfLayer(layer));
    EXPECT_EQ(to.layers[i].attention.cache_scales, testing::ScalesOfLayer(layer));
  }
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 2});
  const auto logits = [&](const engine::ModelConfig& config, const files::OpenedModel& files) {
    ModelRunner runner(*engine::CreateModel(config, files, *backend, ModelRunner::kLimits),
                       *backend, kernels::DType::kF8E4M3);
    return runner.Prefill({400, 500, 600, 700, 800, 900});
  };
  const Logits want = logits(from, model);
  EXPECT_EQ(logits(to, file), want);
  EXPECT_NE(logits(*engine::ReadModelConfig(model), model), want);
}

TEST(ConverterTest, ABadScaleOfAnFp8CacheIsRefused) {
  const TempDirectory directory, checkpoint;
  const std::string path = directory.path() + "/scaled.gguf";
  testing::WriteScaledCheckpoint(checkpoint, 0.0f);
  const auto report = ConvertToGguf(*files::OpenModelFiles(checkpoint.path()), path, {});
  EXPECT_THAT(std::string(report.status().message()),
              HasSubstr("tensor transformer.blocks.0.attn.k_scale: want a scale from "));
  EXPECT_FALSE(std::filesystem::exists(path));
}

// A Llama whose matrices have rows of 256 or 96 values.
constexpr testing::TinyLlamaShape kWide = {.vocab_size = 64,
                                           .hidden_size = 256,
                                           .intermediate_size = 96,
                                           .num_hidden_layers = 1,
                                           .num_attention_heads = 4,
                                           .num_key_value_heads = 2,
                                           .head_dim = 64,
                                           .tie_word_embeddings = true};
testing::InMemoryWeights WideLlama() { return testing::MakeTinyLlama(kWide); }
engine::ModelConfig WideLlamaConfig() {
  return {.architecture = "llama",
          .vocab_size = kWide.vocab_size,
          .hidden_size = kWide.hidden_size,
          .max_position_embeddings = 128,
          .layers = testing::LayersOf(kWide),
          .tie_word_embeddings = kWide.tie_word_embeddings,
          .ropes = {{.rope_dim = kWide.head_dim}}};
}
absl::StatusOr<ConvertReport> ConvertWide(const testing::InMemoryWeights& weights,
                                          const std::string& path, const ConvertOptions& options) {
  const engine::TensorNames names = testing::ReadGoldenLlamas().front().names;
  return ConvertWeights(WideLlamaConfig(), names, weights, files::GgufValues(), path, options);
}

TEST(ConverterTest, TypesFollowTheLengthOfRowsAndTheHead) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/model.gguf";
  const auto types = [&](WeightType wanted) {
    const auto report = ConvertWide(WideLlama(), path, {.type = wanted});
    EXPECT_TRUE(report.ok()) << report.status();
    const files::OpenedModel model = *files::OpenModelFiles(path);
    std::vector<std::string> names;
    for (const char* tensor : {"token_embd", "output_norm", "blk.0.attn_q", "blk.0.ffn_down"}) {
      const files::TensorInfo* info = model.weights->Find(std::string(tensor) + ".weight");
      names.emplace_back(files::GgmlTypeOf(info->type).name);
    }
    return names;
  };
  EXPECT_THAT(types(WeightType::kQ4_K), ElementsAre("Q6_K", "F32", "Q4_K", "Q5_0"));
  EXPECT_THAT(types(WeightType::kQ4_0), ElementsAre("Q6_K", "F32", "Q4_0", "Q4_0"));
  EXPECT_THAT(types(WeightType::kQ8_0), ElementsAre("Q8_0", "F32", "Q8_0", "Q8_0"));
  EXPECT_THAT(types(WeightType::kF16), ElementsAre("F16", "F32", "F16", "F16"));
  EXPECT_THAT(types(WeightType::kBF16), ElementsAre("BF16", "F32", "BF16", "BF16"));
}

TEST(ConverterTest, FewerBitsMakeALargerError) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/model.gguf";
  double last = 0.0;
  int64_t last_bytes = std::numeric_limits<int64_t>::max();
  for (const WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kQ8_0, WeightType::kQ4_K}) {
    const auto report = ConvertWide(WideLlama(), path, {.type = type});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_GE(report->relative_error, last);
    EXPECT_LT(report->file_bytes, last_bytes);
    EXPECT_EQ(report->file_bytes, static_cast<int64_t>(std::filesystem::file_size(path)));
    last = report->relative_error;
    last_bytes = report->file_bytes;
  }
  EXPECT_GT(last, 0.0);
}

TEST(ConverterTest, ThreadsWriteTheSameBytes) {
  const TempDirectory directory;
  std::vector<std::string> files;
  for (const int threads : {1, 3}) {
    const std::string path = directory.path() + "/" + std::to_string(threads);
    ASSERT_TRUE(
        ConvertWide(WideLlama(), path, {.type = WeightType::kQ4_K, .num_threads = threads}).ok());
    files.push_back(testing::ReadFile(path));
  }
  EXPECT_TRUE(files[0] == files[1]);
}

TEST(ConverterTest, ProgressEndsAtAllWeights) {
  const TempDirectory directory;
  int64_t last = 0, total = 0;
  const auto report = ConvertWide(WideLlama(), directory.path() + "/model.gguf",
                                  {.progress = [&](const ConvertProgress& progress) {
                                    EXPECT_GT(progress.num_weights, last);
                                    EXPECT_FALSE(progress.tensor.empty());
                                    last = progress.num_weights;
                                    total = progress.total_weights;
                                  }});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(last, total);
  EXPECT_EQ(report->num_weights, total);
}

TEST(ConverterTest, AFailureLeavesTheOldFileAndNothingElse) {
  const TempDirectory directory;
  const std::string path = directory.Write("model.gguf", "old");
  testing::InMemoryWeights weights;
  const testing::InMemoryWeights whole = WideLlama();
  for (const files::TensorInfo& tensor : whole.tensors()) {
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    if (tensor.name.ends_with("down_proj.weight")) values.back() = std::nanf("");
    weights.Add(tensor.name, tensor.shape, std::move(values));
  }
  const auto report = ConvertWide(weights, path, {});
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("blk.0.ffn_down.weight"));
  EXPECT_TRUE(testing::ReadFile(path) == "old");
  EXPECT_EQ(directory.NumFiles(), 1);
}

TEST(ConverterTest, SourcesAreCheckedBeforeAnythingIsWritten) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/model.gguf";
  engine::ModelConfig config = WideLlamaConfig();
  config.layers.resize(2, config.layers[0]);
  bool wrote = false;
  const auto report = ConvertWeights(config, testing::ReadGoldenLlamas().front().names, WideLlama(),
                                     files::GgufValues(), path,
                                     {.progress = [&](const ConvertProgress&) { wrote = true; }});
  EXPECT_EQ(report.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("model.layers.1."));
  EXPECT_FALSE(wrote);

  testing::InMemoryWeights more = WideLlama();
  more.AddRandom("model.layers.0.mlp.extra.weight", {64});
  const auto left_out = ConvertWide(more, path, {});
  EXPECT_EQ(left_out.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(left_out.status().message()), HasSubstr("mlp.extra"));
}

TEST(ConverterTest, TypesByName) {
  EXPECT_EQ(*ParseConvertType("q4_k"), WeightType::kQ4_K);
  EXPECT_EQ(*ParseConvertType("BF16"), WeightType::kBF16);
  const auto unknown = ParseConvertType("q3_k");
  EXPECT_THAT(std::string(unknown.status().message()),
              HasSubstr("f32, f16, bf16, q8_0, q4_0, q4_k"));
}

}  // namespace
}  // namespace quire::convert
