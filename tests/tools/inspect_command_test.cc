#include "tools/inspect_command.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "engine/load/engine_loader.h"
#include "tests/files/gguf_writer.h"
#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"
#include "tests/tools/run_command.h"
#include "tools/model_report.h"

namespace quire::tools {
namespace {

using nlohmann::json;
using ::quire::testing::GgufWriter;
using ::quire::testing::TempDirectory;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Writes a tiny Llama with a SentencePiece vocabulary of letters.
std::string WriteTinyModel(const TempDirectory& directory,
                           std::string_view chat_template = "{{ messages }}") {
  GgufWriter writer = testing::TinyLlamaGguf();
  writer.String("tokenizer.ggml.model", "llama");
  writer.Array<float>("tokenizer.ggml.scores", files::GgufType::kFloat32, {0, 0, 0, -1, -2});
  writer.Array<int32_t>("tokenizer.ggml.token_type", files::GgufType::kInt32, {2, 3, 3, 1, 1});
  writer.U32("tokenizer.ggml.bos_token_id", 1).U32("tokenizer.ggml.eos_token_id", 2);
  writer.U32("tokenizer.ggml.unknown_token_id", 0);
  writer.Bool("tokenizer.ggml.add_space_prefix", false)
      .String("tokenizer.chat_template", chat_template);
  return directory.Write("tiny.gguf", writer.Build());
}

TEST(InspectCommandTest, ShowsWhatAModelHoldsAndNeeds) {
  const TempDirectory directory;
  const Result result = RunInspect({WriteTinyModel(directory)});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("GGUF v3"), HasSubstr("tiny"), HasSubstr("2 heads of 8, 1 KV heads"),
                    HasSubstr("64 tokens"), HasSubstr("64 bytes a token in f16"),
                    HasSubstr("chat template  yes"), HasSubstr("supported      yes")));
  EXPECT_THAT(result.out, Not(HasSubstr("blk.0")));
  EXPECT_THAT(RunInspect({WriteTinyModel(directory), "--tensors"}).out,
              HasSubstr("blk.1.ffn_down.weight"));
  EXPECT_EQ(result.err, "");
}

TEST(InspectCommandTest, AChatTemplateThatCannotBeUsedIsAWarning) {
  const TempDirectory directory;
  const std::string path = WriteTinyModel(directory, "{% for %}");
  const Result result = RunInspect({path});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("warning: it cannot be used, and conversations are "
                                          "refused: line 1:"),
                                HasSubstr("supported      yes")));
  const auto report = nlohmann::json::parse(RunInspect({path, "--json"}).out);
  EXPECT_EQ(report["has_chat_template"], true);
  EXPECT_THAT(report["chat_template_error"].get<std::string>(), HasSubstr("line 1:"));
}

TEST(InspectCommandTest, ShowsTheTypesOfAnFp8File) {
  const std::string path = testing::TestSourcePath("engine/model/testdata/fp8_block");
  EXPECT_THAT(RunInspect({path, "--tensors"}).out,
              AllOf(ContainsRegex("F8_E4M3 +144.0 KiB in 7 tensors"),
                    ContainsRegex("mlp.down_proj.weight +F8_E4M3 +\\[192, 192\\]"),
                    ContainsRegex("mlp.down_proj.weight_scale_inv +F32 +\\[2, 2\\]")));
}

TEST(ModelReportTest, ALayerWithAWindowKeepsThatMuchOfAContext) {
  ModelReport report{.config = {.max_position_embeddings = 64}};
  for (const int64_t window : {10, 0, 100}) {
    report.config.layers.push_back(
        {.attention = {.num_kv_heads = 1,
                       .key_dim = 8,
                       .value_dim = 8,
                       .pattern = kernels::AttentionPattern::Window(window)}});
  }
  EXPECT_EQ(report.kv_bytes_per_context(), (10 + 64 + 64) * 2 * 8 * 2);
  // Block-sparse layers keep the whole context.
  report.config.layers[0].attention.pattern = kernels::AttentionPattern::Blocks(64, 1, 8, 1);
  report.config.max_position_embeddings = 1024;
  EXPECT_EQ(report.kv_bytes_per_context(), (1024 + 1024 + 100) * 2 * 8 * 2);
}

TEST(ModelReportTest, LayersThatDifferAreShownAsRangesAndOneByOne) {
  ModelReport report{.config = {.max_position_embeddings = 64}};
  for (const int64_t heads : {2, 6, 4}) {
    report.config.layers.push_back(
        {.attention = {.num_heads = heads,
                       .num_kv_heads = heads / 2,
                       .key_dim = 24,
                       .value_dim = 16,
                       .pattern = kernels::AttentionPattern::Window(heads == 6 ? 10 : 0)},
         .feed_forward = {.inner_size = 100 * heads}});
  }
  const std::string text = ToText(report, false);
  EXPECT_THAT(text, HasSubstr("2 to 6 heads of 24, values of 16, 1 to 3 KV heads"));
  EXPECT_THAT(text, HasSubstr("feed-forward 200 to 600"));
  EXPECT_EQ(report.kv_bytes_per_token(), 2 * (24 + 16) * (1 + 3 + 2));
  EXPECT_EQ(report.kv_bytes_per_context(), 2 * (24 + 16) * (1 * 64 + 3 * 10 + 2 * 64));
  const auto layers = ToJson(report, false)["layers"];
  ASSERT_EQ(layers.size(), 3);
  EXPECT_EQ(
      layers[1].dump(),
      R"({"num_heads":6,"num_kv_heads":3,"head_dim":24,"v_head_dim":16,"intermediate_size":600})");
}

TEST(ModelReportTest, PatternsAreNamedWithTheirLayers) {
  ModelReport report{.config = {.max_position_embeddings = 64}};
  for (const auto& pattern :
       {kernels::AttentionPattern::Window(10), kernels::AttentionPattern::Chunk(20),
        kernels::AttentionPattern::Chunk(20), kernels::AttentionPattern(),
        kernels::AttentionPattern::Blocks(64, 16, 8, 1)}) {
    report.config.layers.push_back({.attention = {.pattern = pattern}});
  }
  const std::string text = ToText(report, false);
  EXPECT_THAT(text, ContainsRegex("window +10 tokens, on 1 layers"));
  EXPECT_THAT(text, ContainsRegex("chunks +20 tokens, on 2 layers"));
  EXPECT_THAT(text,
              ContainsRegex("sparse attention +blocks of 64: the last 16, and one of every 8, "
                            "by head, on 1 layers; saves reading, not memory"));
}

TEST(InspectCommandTest, JsonHoldsTheSameNumbers) {
  const TempDirectory directory;
  const Result result = RunInspect({"--json", "--tensors", WriteTinyModel(directory)});
  ASSERT_EQ(result.status, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_EQ(report["architecture"], "llama");
  EXPECT_EQ(report["supported"], true);
  EXPECT_EQ(report["num_tensors"], 20);
  EXPECT_EQ(report["num_parameters"], 5 * 16 + 16 + 2 * (2 * 16 + 2 * 256 + 2 * 128 + 3 * 24 * 16));
  EXPECT_EQ(report["weight_bytes"], 4 * report["num_parameters"].get<int64_t>());
  EXPECT_EQ(report["kv_bytes_per_token"], 2 * 2 * 2 * 8);
  EXPECT_EQ(report["memory_bytes"], report["weight_bytes"].get<int64_t>() + 64 * 64);
  EXPECT_EQ(report["tokenizer"]["num_tokens"], 5);
  EXPECT_EQ(report["vocab_size"], 5);
  EXPECT_EQ(report["has_chat_template"], true);
  EXPECT_EQ(report["tensors"].size(), 20u);
  EXPECT_EQ(report["tensors"][0]["shape"], json({5, 16}));
}

TEST(InspectCommandTest, TokenizePrintsAJsonList) {
  const TempDirectory directory;
  const std::string path = WriteTinyModel(directory);
  EXPECT_EQ(RunInspect({path, "--tokenize", "ab"}).out, "[1, 3, 4]\n");
  EXPECT_EQ(RunInspect({path, "--tokenize=ab", "--no_special_tokens"}).out, "[3, 4]\n");
  EXPECT_EQ(RunInspect({path, "--tokenize", "", "--no_special_tokens"}).out, "[]\n");
  const std::string bare = directory.Write("bare.gguf", GgufWriter().Build());
  const Result result = RunInspect({bare, "--tokenize", "ab"});
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.out, "");
}

TEST(InspectCommandTest, AModelThatIsNotSupportedIsStillShown) {
  const TempDirectory directory;
  const std::string path = directory.Write(
      "other.gguf",
      GgufWriter().String("general.architecture", "mamba").Zeros("w", {4, 4}).Build());
  const Result result = RunInspect({path});
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.out, AllOf(HasSubstr("mamba"), HasSubstr("16 in 1 tensor\n"),
                                HasSubstr("supported      no: ")));
  EXPECT_EQ(json::parse(RunInspect({path, "--json"}).out)["supported"], false);
}

// Makes a directory with the bundled model's weights and an edited config.json.
class EditedModelTest : public ::testing::Test {
 protected:
  EditedModelTest() {
    const std::string bundled = testing::TestSourcePath("../models/quire-stories");
    for (const char* name : {"model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::create_symlink(std::filesystem::absolute(bundled + "/" + name),
                                      directory_.path() + "/" + name);
    }
    config_ = json::parse(testing::ReadFile(bundled + "/config.json"));
  }
  std::string Edited(std::string_view edit) const {
    json config = config_;
    config.merge_patch(json::parse(edit));
    directory_.Write("config.json", config.dump());
    return directory_.path();
  }

  TempDirectory directory_;
  json config_;
};

// quire-inspect must report a model as supported if and only if the model loads. Otherwise it must
// give the error of loading.
TEST_F(EditedModelTest, IsSupportedWhenItLoads) {
  for (const std::string_view edit :
       {"{}", R"({"n_layers": 5})", R"({"n_layers": 7})", R"({"vocab_size": 4095})",
        R"({"vocab_size": 4097})", R"({"attn_config": {"qk_ln": true}})", R"({"no_bias": false})",
        R"({"n_heads": 4})", R"({"expansion_ratio": 3})", R"({"tie_word_embeddings": false})"}) {
    SCOPED_TRACE(edit);
    const std::string path = Edited(edit);
    const Result result = RunInspect({path, "--json"});
    const json report = json::parse(result.out);
    const bool supported = edit == "{}";
    EXPECT_EQ(report["supported"], supported);
    EXPECT_EQ(result.status, supported ? 0 : 3);
    const auto loaded = engine::LoadEngineParts(
        {.model_path = path, .threads = 1, .max_num_seqs = 1, .max_model_len = 64});
    EXPECT_EQ(loaded.ok(), supported);
    if (supported) continue;
    EXPECT_EQ(report["not_supported_because"], std::string(loaded.status().message()));
  }
}

TEST_F(EditedModelTest, AlibiIsServedAndMeasuredBeyondItsContext) {
  const std::string path = Edited(R"({"max_seq_len": 64})");
  const auto limits = [&](int64_t max_model_len) {
    const auto loaded = engine::LoadEngineParts({.model_path = path,
                                                 .threads = 1,
                                                 .kv_cache_mib = 8,
                                                 .max_num_seqs = 1,
                                                 .max_model_len = max_model_len});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->model_info.max_model_len : -1;
  };
  EXPECT_EQ(limits(0), 64);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(limits(300), 300);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("trained_for=64"));
  std::string story;
  for (int i = 0; i < 40; ++i) story += "Once upon a time there was a little dog. ";
  const std::string text = directory_.Write("text", story);
  const Result result = RunInspect({"--perplexity", path, text, "--context", "256", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_LT(json::parse(result.out)["perplexity"], 10.0);
}

TEST(InspectCommandTest, AMissingPreTokenizerIsWarnedOf) {
  const TempDirectory directory;
  const std::string path =
      directory.Write("old.gguf", GgufWriter()
                                      .String("general.architecture", "llama")
                                      .String("tokenizer.ggml.model", "gpt2")
                                      .Strings("tokenizer.ggml.tokens", {"a", "b"})
                                      .Strings("tokenizer.ggml.merges", {})
                                      .Build());
  EXPECT_THAT(RunInspect({path}).out,
              HasSubstr("warning: the file names no tokenizer.ggml.pre: taken is default"));
}

TEST(InspectCommandTest, ABadFileIsOneLineAndStatusOne) {
  const TempDirectory directory;
  const std::string whole = testing::TinyLlamaGguf().Build();
  for (const std::string& path :
       {directory.Write("cut.gguf", whole.substr(0, whole.size() / 2)),
        directory.Write("text.txt", "a\nb\nc\n"), directory.Write("bad.safetensors", "{\n\n}"),
        directory.path(), directory.path() + "/absent"}) {
    const Result result = RunInspect({path});
    EXPECT_EQ(result.status, 1) << path;
    EXPECT_EQ(result.out, "") << path;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(path));
  }
}

// A name from a file must not reach the terminal as a control sequence.
TEST(InspectCommandTest, NamesAreEscaped) {
  const TempDirectory directory;
  const std::string path = directory.Write("evil.gguf", GgufWriter()
                                                            .String("general.name", "a\x1b[2Jb\xff")
                                                            .String("general.architecture", "\n")
                                                            .Build());
  EXPECT_THAT(RunInspect({path}).out, AllOf(HasSubstr("a\\x1b[2Jb"), Not(HasSubstr("\x1b"))));
  EXPECT_FALSE(json::parse(RunInspect({path, "--json"}).out)["name"].get<std::string>().empty());
}

TEST(InspectCommandTest, WrongArgumentsAreStatusTwo) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {}, {"a", "b"}, {"a", "--tokenise", "x"}, {"a", "--tokenize"}, {"--json"}}) {
    const Result result = RunInspect(args);
    EXPECT_EQ(result.status, 2);
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1);
  }
  const Result help = RunInspect({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("usage: quire-inspect MODEL"));
}

}  // namespace
}  // namespace quire::tools
