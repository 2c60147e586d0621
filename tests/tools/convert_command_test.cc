#include "tools/convert_command.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/files/safetensors_writer.h"
#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"
#include "tests/tools/run_command.h"

namespace quire::tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string BundledModel() { return testing::TestSourcePath("../models/quire-stories"); }

TEST(ConvertCommandTest, SaysWhatTheFileHolds) {
  const testing::TempDirectory directory;
  const std::string path = directory.path() + "/stories.gguf";
  const Result result = RunConvert({BundledModel(), path, "--type=q4_k", "--threads", "2"});
  EXPECT_EQ(result.status, 0) << result.err;
  // On a slow machine, stderr may also hold progress.
  EXPECT_THAT(result.err, Not(HasSubstr("warning")));
  EXPECT_THAT(result.out, StartsWith(path + ": "));
  EXPECT_THAT(result.out, HasSubstr("Q4_K 79."));
  EXPECT_THAT(result.out, HasSubstr(" bits a weight, relative error "));
}

TEST(ConvertCommandTest, AFileThatIsThereIsReplacedOnlyIfToldTo) {
  const testing::TempDirectory directory;
  const std::string path = directory.Write("stories.gguf", "old");
  const Result refused = RunConvert({BundledModel(), path});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("--overwrite"));
  EXPECT_EQ(testing::ReadFile(path), "old");
  EXPECT_EQ(RunConvert({BundledModel(), path, "--overwrite"}).status, 0);
  EXPECT_EQ(testing::ReadFile(path).substr(0, 4), "GGUF");
}

// Makes the bundled model, whose keys are grouped, in `directory` with norms of queries and keys.
// llama.cpp cannot load such a model. Its chat template is no text.
void WriteModelForQuireAlone(const testing::TempDirectory& directory) {
  namespace fs = std::filesystem;
  const fs::path bundled = fs::absolute(BundledModel());
  fs::create_symlink(bundled / "tokenizer.json", directory.path() + "/tokenizer.json");
  fs::create_symlink(bundled / "model.safetensors", directory.path() + "/weights.safetensors");
  json config = json::parse(testing::ReadFile(bundled / "config.json"));
  config["attn_config"]["qk_ln"] = true;
  directory.Write("config.json", config.dump());
  json tokenizer = json::parse(testing::ReadFile(bundled / "tokenizer_config.json"));
  tokenizer["chat_template"] = 3;
  directory.Write("tokenizer_config.json", tokenizer.dump());
  json header;
  std::string ones;
  for (int layer = 0; layer < config["n_layers"].get<int>(); ++layer) {
    for (const auto& [name, size] : {std::pair("q_ln", 256), std::pair("k_ln", 64)}) {
      const size_t begin = ones.size();
      for (int i = 0; i < size; ++i) ones += testing::Raw(1.0F);
      header["transformer.blocks." + std::to_string(layer) + ".attn." + name + ".weight"] = {
          {"dtype", "F32"}, {"shape", {size}}, {"data_offsets", {begin, ones.size()}}};
    }
  }
  directory.Write("norms.safetensors", testing::Safetensors(header.dump(), ones));
  directory.Write("model.safetensors.index.json", R"({"weight_map": {
      "transformer.wte.weight": "weights.safetensors",
      "transformer.blocks.0.attn.q_ln.weight": "norms.safetensors"}})");
}

TEST(ConvertCommandTest, WhatLlamaCppCannotLoadIsWrittenForQuireAlone) {
  const testing::TempDirectory directory;
  WriteModelForQuireAlone(directory);
  const std::string path = directory.path() + "/model.gguf";
  for (const std::vector<std::string>& reader :
       {std::vector<std::string>{}, std::vector<std::string>{"--for", "all"}}) {
    std::vector<std::string> args = {directory.path(), path};
    args.insert(args.end(), reader.begin(), reader.end());
    const Result refused = RunConvert(args);
    EXPECT_EQ(refused.status, 1);
    EXPECT_THAT(refused.err, HasSubstr("llama.cpp cannot load a GGUF file of this model"));
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  const Result written = RunConvert({directory.path(), path, "--for", "quire"});
  EXPECT_EQ(written.status, 0) << written.err;
  EXPECT_THAT(written.err, HasSubstr("warning: "));
  EXPECT_THAT(written.err, HasSubstr("chat_template: want a string"));
  EXPECT_THAT(written.err, HasSubstr("it is left out"));
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(ConvertCommandTest, TheFileIsInspectedAsItsDirectory) {
  const testing::TempDirectory directory;
  const std::string path = directory.path() + "/stories.gguf";
  ASSERT_EQ(RunConvert({BundledModel(), path, "--type=q4_0"}).status, 0);
  const std::vector<std::string> tokenize = {"--tokenize", "Once upon a time"};
  EXPECT_EQ(RunInspect({path, tokenize[0], tokenize[1]}).out, "[0, 419, 435, 259, 395]\n");
  EXPECT_EQ(RunInspect({BundledModel(), tokenize[0], tokenize[1]}).out,
            RunInspect({path, tokenize[0], tokenize[1]}).out);
  const json of_file = json::parse(RunInspect({path, "--json"}).out);
  const json of_directory = json::parse(RunInspect({BundledModel(), "--json"}).out);
  EXPECT_EQ(of_file["weight_type"], "Q4_0");
  EXPECT_EQ(of_directory["weight_type"], "BF16");
  EXPECT_EQ(of_file["num_parameters"], of_directory["num_parameters"]);
  EXPECT_EQ(of_directory["num_parameters"], 5'180'672);
}

TEST(ConvertCommandTest, ArgumentsThatMakeNoSense) {
  EXPECT_EQ(RunConvert({}).status, 2);
  EXPECT_THAT(RunConvert({"model"}).err, HasSubstr("want MODEL and OUTPUT"));
  const Result type = RunConvert({"model", "out.gguf", "--type", "q9"});
  EXPECT_EQ(type.status, 2);
  EXPECT_THAT(type.err, HasSubstr("--type: want one of f32, f16, bf16, q8_0, q4_0, q4_k"));
  const Result reader = RunConvert({"model", "out.gguf", "--for", "vllm"});
  EXPECT_EQ(reader.status, 2);
  EXPECT_THAT(reader.err, HasSubstr("--for: want all or quire, got \"vllm\""));
  EXPECT_EQ(RunConvert({"--help"}).status, 0);
}

TEST(ConvertCommandTest, WhatIsNoDirectoryIsRefused) {
  const testing::TempDirectory directory;
  const std::string path = directory.path() + "/stories.gguf";
  EXPECT_EQ(RunConvert({directory.path() + "/nothing", path}).status, 1);
  ASSERT_EQ(RunConvert({BundledModel(), path}).status, 0);
  const Result again = RunConvert({path, directory.path() + "/again.gguf"});
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.err, HasSubstr("want a Hugging Face directory"));
}

}  // namespace
}  // namespace quire::tools
