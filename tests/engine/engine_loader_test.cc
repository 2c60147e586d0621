// Tests what an engine makes of the scales of an fp8 KV cache in a checkpoint, and how much memory
// of a device loading takes.

#include "engine/load/engine_loader.h"

#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "engine/engine.h"
#include "tests/testing/collecting_sink.h"
#include "tests/testing/scaled_checkpoint.h"

namespace quire::engine {
namespace {

using kernels::CacheScales;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ScalesOfLayer;
using testing::TempDirectory;
using testing::WriteScaledCheckpoint;

EngineConfig ConfigOf(const std::string& path, const std::string& kv_dtype) {
  return {.model_path = path,
          .threads = 2,
          .kv_dtype = kv_dtype,
          .kv_cache_mib = 16,
          .max_num_seqs = 2,
          .max_num_batched_tokens = 128};
}

TEST(EngineLoaderTest, AnFp8CacheHasTheScalesOfItsLayersAndOthersHaveNone) {
  const TempDirectory directory;
  WriteScaledCheckpoint(directory);
  for (const std::string kv_dtype : {"fp8", "fp8_e4m3", "f16", "bf16", "f32", "auto"}) {
    const auto parts = LoadEngineParts(ConfigOf(directory.path(), kv_dtype));
    ASSERT_TRUE(parts.ok()) << parts.status();
    const bool has_scales = kv_dtype.starts_with("fp8");
    for (int64_t layer = 0; layer < 6; ++layer) {
      EXPECT_EQ(parts->cache.layer(layer).scales, has_scales ? ScalesOfLayer(layer) : CacheScales())
          << kv_dtype << " " << layer;
    }
  }
  const auto plain =
      LoadEngineParts(ConfigOf(testing::TestSourcePath("../models/quire-stories"), "fp8"));
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->cache.layer(0).scales, CacheScales());
}

// Makes models/quire-stories in `directory`, with `chat_template` in its tokenizer_config.json.
void WriteChatModel(const TempDirectory& directory, const nlohmann::json& chat_template) {
  WriteScaledCheckpoint(directory);
  const std::string path = directory.path() + "/tokenizer_config.json";
  nlohmann::json config = nlohmann::json::parse(testing::ReadFile(path));
  config["chat_template"] = chat_template;
  std::filesystem::remove(path);  // a link into the source tree
  directory.Write("tokenizer_config.json", config.dump());
}

TEST(EngineLoaderTest, AChatTemplateThatCannotBeReadRefusesConversationsAlone) {
  for (const nlohmann::json& bad : {nlohmann::json("{% for %}"), nlohmann::json(3)}) {
    const TempDirectory directory;
    WriteChatModel(directory, bad);
    EngineConfig config = ConfigOf(directory.path(), "f16");
    const auto engine = Engine::Create(config);
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE((*engine)->Tokenize("a text", text::InputKind::kPrompt, true).ok());
    const absl::Status status = (*engine)->ApplyChatTemplate({{"user", "hi"}}, true).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("chat: this model's chat template cannot be used: "),
                      HasSubstr(bad.is_string() ? "line 1:" : "got number")));

    config.chat_template = directory.Write("good.jinja", "[{{ messages[0].content }}]");
    const auto mended = Engine::Create(config);
    ASSERT_TRUE(mended.ok()) << mended.status();
    EXPECT_EQ((*mended)->ApplyChatTemplate({{"user", "hi"}}, true).value(), "[hi]");
    EXPECT_NE((*mended)->server_info().model_digest, (*engine)->server_info().model_digest);
  }
}

// Who names a template wants that one, so a server without it would not be what was asked for.
TEST(EngineLoaderTest, AReplacementThatCannotBeReadIsRefused) {
  const TempDirectory directory;
  WriteChatModel(directory, "{{ messages[0].content }}");
  EngineConfig config = ConfigOf(directory.path(), "f16");
  config.chat_template = directory.Write("bad.jinja", "{% for %}");
  EXPECT_THAT(std::string(LoadEngineParts(config).status().message()),
              AllOf(HasSubstr("chat_template: "), HasSubstr("/bad.jinja: line 1:")));
  config.chat_template = directory.path() + "/absent.jinja";
  EXPECT_THAT(std::string(LoadEngineParts(config).status().message()),
              HasSubstr("absent.jinja: open: No such file"));
}

TEST(EngineLoaderTest, ABadScaleIsRefusedByNameWhereItIsUsed) {
  for (const float factor : {0.0f, -1.0f, std::numeric_limits<float>::infinity()}) {
    const TempDirectory directory;
    WriteScaledCheckpoint(directory, factor);
    EXPECT_THAT(std::string(LoadEngineParts(ConfigOf(directory.path(), "fp8")).status().message()),
                HasSubstr(directory.path() +
                          ": tensor transformer.blocks.0.attn.k_scale: want a scale from "));
    EXPECT_TRUE(LoadEngineParts(ConfigOf(directory.path(), "f16")).ok());
  }
}

// Returns the greedy answer of the model at `path`.
testing::CollectingSink::Sample AnswerOf(const std::string& path, const std::string& kv_dtype) {
  const auto engine = Engine::Create(ConfigOf(path, kv_dtype));
  EXPECT_TRUE(engine.ok()) << engine.status();
  GenerateParams params;
  params.prompt = "Once upon a time there was a small dragon who";
  params.sampling.temperature = 0.0f;
  params.stop.max_tokens = 24;
  params.stop.ignore_eos = true;
  params.output.token_ids = true;
  params.output.top_logprobs = 0;
  const auto sink = std::make_shared<testing::CollectingSink>();
  const auto handle = (*engine)->Submit(std::move(params), sink);
  EXPECT_TRUE(handle.ok()) << handle.status();
  EXPECT_TRUE(sink->WaitFinished());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  return sink->sample();
}

// A scale that is 2^20 times too small makes the keys of the first layer saturate.
TEST(EngineLoaderTest, TheTokensAreThoseOfAnF32CacheIfTheScalesFit) {
  const TempDirectory good, bad;
  WriteScaledCheckpoint(good);
  WriteScaledCheckpoint(bad, 0x1p-20f);
  const auto exact = AnswerOf(good.path(), "f32"), got = AnswerOf(good.path(), "fp8");
  EXPECT_EQ(got.token_ids, exact.token_ids);
  EXPECT_NE(got.logprobs[0].chosen.logprob, exact.logprobs[0].chosen.logprob);
  EXPECT_EQ(AnswerOf(bad.path(), "f32").token_ids, exact.token_ids);
  EXPECT_NE(AnswerOf(bad.path(), "fp8").token_ids, exact.token_ids);
}

#if defined(QUIRE_CUDA_EMULATED)
EngineConfig ConfigOnADevice(int32_t max_num_seqs) {
  return {.model_path = testing::TestSourcePath("../models/quire-stories"),
          .backend = "cuda-emulated",
          .gpu_memory_utilization = 0.25,
          .max_num_seqs = max_num_seqs,
          .max_num_batched_tokens = 128,
          .max_model_len = 128};
}

TEST(EngineLoaderTest, WeightsStepsSamplerAndCacheTakeTheirShareOfADevice) {
  const auto parts = LoadEngineParts(ConfigOnADevice(128));
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_NE(parts->sampler, nullptr);
  const int64_t memory = parts->backend->info().memory_bytes;
  const int64_t used = memory - parts->backend->available_bytes();
  EXPECT_LE(used, memory / 4);
  EXPECT_GT(used, memory / 4 - (2 << 20));  // less than a block of every sequence is left over
}

TEST(EngineLoaderTest, TooManyRowsOfLogitsForADeviceEndWithTheCure) {
  EXPECT_THAT(std::string(LoadEngineParts(ConfigOnADevice(1 << 16)).status().message()),
              HasSubstr(": out of memory: weights and steps need it; lower "
                        "--max_num_batched_tokens or --max_num_seqs"));
}
#endif

}  // namespace
}  // namespace quire::engine
