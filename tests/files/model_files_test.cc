#include "files/model_files.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/stat.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/quant/dequantize.h"
#include "tests/files/safetensors_writer.h"
#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"

namespace quire::files {
namespace {

using ::quire::testing::GgufWriter;
using ::quire::testing::Raw;
using ::quire::testing::Safetensors;
using ::quire::testing::TempDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& path) {
  return std::string(OpenModelFiles(path).status().message());
}

int64_t TensorBytes(const OpenedModel& model) {
  int64_t total = 0;
  for (const TensorInfo& tensor : model.weights->tensors()) total += std::ssize(tensor.bytes);
  return total;
}

// Returns a file with one F32 tensor of two elements.
std::string OneTensor(const std::string& name, float first, float second) {
  return Safetensors("{\"" + name + R"(": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})",
                     Raw(first) + Raw(second));
}

TEST(ModelFilesTest, OpensAGgufFile) {
  const TempDirectory directory;
  const auto model = OpenModelFiles(directory.Write("tiny.gguf", testing::TinyLlamaGguf().Build()));
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(model->gguf.has_value());
  EXPECT_FALSE(model->hf.has_value());
  EXPECT_EQ(model->format(), "GGUF");
  EXPECT_EQ(model->file_name, "tiny.gguf");
  EXPECT_EQ(model->gguf->String("general.name").value(), "tiny");
  EXPECT_EQ(model->weights->tensors().size(), 20u);
  EXPECT_EQ(model->ChatTemplate().value(), "");

  const auto matrix = model->weights->Matrix("token_embd.weight", 5, 16);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(matrix->bytes.size(), 5u * 16 * 4);
  EXPECT_THAT(std::string(model->weights->Matrix("token_embd.weight", 5, 15).status().message()),
              HasSubstr("tensor token_embd.weight: want [5, 15], got [5, 16]"));
  EXPECT_THAT(std::string(model->weights->Matrix("output_norm.weight", 16, 1).status().message()),
              HasSubstr("want [16, 1], got [16]"));
  EXPECT_EQ(model->weights->Matrix("nothing", 5, 16).status().code(), absl::StatusCode::kNotFound);
}

TEST(ModelFilesTest, TheMagicCountsNotTheName) {
  const TempDirectory directory;
  EXPECT_TRUE(OpenModelFiles(directory.Write("blob", testing::TinyLlamaGguf().Build())).ok());
  EXPECT_THAT(ErrorOf(directory.Write("fake.gguf", "hello, world")),
              HasSubstr("magic: want \"GGUF\""));
}

// Writes part `number` of `count`, counted from 1, with one tensor of that number.
GgufWriter PartOf(uint32_t number, uint32_t count) {
  GgufWriter part;
  part.U32("split.no", number - 1).U32("split.count", count).U32("split.tensors.count", count);
  if (number == 1) part.String("general.name", "in parts");
  return part.Zeros("t" + std::to_string(number), {number, 2});
}

TEST(ModelFilesTest, OpensAGgufModelInPartsByItsFirst) {
  const TempDirectory directory;
  const std::string first = directory.Write("m-00001-of-00003.gguf", PartOf(1, 3).Build());
  const std::string second = directory.Write("m-00002-of-00003.gguf", PartOf(2, 3).Build());
  EXPECT_THAT(ErrorOf(first), AllOf(HasSubstr("want part 3 of 3"),
                                    HasSubstr("/m-00003-of-00003.gguf: the download is not")));
  directory.Write("m-00003-of-00003.gguf", PartOf(3, 3).Build());
  const auto model = OpenModelFiles(first);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->file_name, "m.gguf");
  EXPECT_EQ(model->gguf->String("general.name").value(), "in parts");
  ASSERT_EQ(model->weights->tensors().size(), 3u);
  EXPECT_EQ(TensorBytes(*model), 4 * (2 + 4 + 6));
  EXPECT_TRUE(model->weights->Matrix("t3", 3, 2).ok());
  EXPECT_THAT(ErrorOf(second), AllOf(HasSubstr("want the first part of 3"),
                                     HasSubstr("-00001-of-00003.gguf, got part 2")));
  directory.Write("-00002-of-00002.gguf", PartOf(2, 2).Build());
  const std::string nameless = directory.Write("-00001-of-00002.gguf", PartOf(1, 2).Build());
  EXPECT_EQ(OpenModelFiles(nameless)->file_name, "-00001-of-00002.gguf");
}

TEST(ModelFilesTest, RefusesPartsThatDoNotBelongTogether) {
  const TempDirectory directory;
  const std::string first = directory.Write("m-00001-of-00002.gguf", PartOf(1, 2).Build());
  const auto error_with = [&](const GgufWriter& second) {
    directory.Write("m-00002-of-00002.gguf", second.Build());
    return ErrorOf(first);
  };
  EXPECT_EQ(error_with(PartOf(2, 2)), "");
  EXPECT_THAT(error_with(PartOf(2, 3)), HasSubstr("split.count: want 2"));
  EXPECT_THAT(error_with(PartOf(1, 2)),
              HasSubstr("split.no: want 1, as in the file's name, got 0"));
  EXPECT_THAT(error_with(GgufWriter()), HasSubstr("split.count: want 2"));
  EXPECT_THAT(error_with(PartOf(2, 2).Zeros("more", {1, 1})),
              HasSubstr("split.tensors.count: want 2 tensors in 2 parts, got 3"));
  GgufWriter again;
  again.U32("split.no", 1).U32("split.count", 2).Zeros("t1", {1, 2});
  EXPECT_THAT(error_with(again), HasSubstr("tensor t1: want each name once"));
  directory.Write("m-00002-of-00002.gguf", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_THAT(ErrorOf(first), HasSubstr("m-00002-of-00002.gguf: a Git LFS pointer"));

  EXPECT_THAT(ErrorOf(directory.Write("renamed.gguf", PartOf(1, 2).Build())),
              HasSubstr("want a name that ends in -00001-of-00002.gguf"));
  EXPECT_THAT(ErrorOf(directory.Write("m-00001-of-99999.gguf", PartOf(1, 99999).Build())),
              HasSubstr("want part 2 of 99999"));
  EXPECT_THAT(ErrorOf(directory.Write("m-00001-of-100000.gguf", PartOf(1, 100000).Build())),
              HasSubstr("split.count: want at most 99999 parts, got 100000"));
}

// llama-gguf-split leaves a count of 0 in a model that it merges.
TEST(ModelFilesTest, AModelOfOnePartIsWhole) {
  const TempDirectory directory;
  for (const uint32_t count : {0u, 1u}) {
    const auto model = OpenModelFiles(
        directory.Write("m-00001-of-00001.gguf", GgufWriter().U32("split.count", count).Build()));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->file_name, "m-00001-of-00001.gguf");
  }
}

TEST(ModelFilesTest, ErrorsNameTheMistake) {
  const TempDirectory directory;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4f\nsize 270\n";
  EXPECT_THAT(ErrorOf(directory.Write("m.gguf", pointer)), HasSubstr("m.gguf: a Git LFS pointer"));
  EXPECT_THAT(ErrorOf(directory.Write("page.gguf", "\n<!DOCTYPE HTML><html>")),
              HasSubstr("a web page, not a model file"));
  EXPECT_THAT(
      ErrorOf(directory.Write("lora.gguf", GgufWriter().String("general.type", "adapter").Build())),
      HasSubstr("an adapter (LoRA)"));
  EXPECT_THAT(ErrorOf(directory.Write("mmproj.gguf",
                                      GgufWriter().String("general.type", "mmproj").Build())),
              HasSubstr("reads images"));

  const TempDirectory hub;
  hub.Write("config.json", "{}");
  hub.Write("tokenizer.json", pointer);
  hub.Write("model.safetensors", OneTensor("a", 1, 2));
  EXPECT_THAT(ErrorOf(hub.path()), HasSubstr("/tokenizer.json: a Git LFS pointer"));
  hub.Write("tokenizer.json", "{}");
  hub.Write("model.safetensors", pointer);
  EXPECT_THAT(ErrorOf(hub.path()), HasSubstr("/model.safetensors: a Git LFS pointer"));
  hub.Write("model.safetensors", OneTensor("a", 1, 2));
  hub.Write("adapter_config.json", "{}");
  EXPECT_EQ(ErrorOf(hub.path()), "");  // without weights it changes nothing
  hub.Write("adapter_model.safetensors", "x");
  EXPECT_THAT(ErrorOf(hub.path()), HasSubstr("an adapter (LoRA), which transformers would apply"));

  const TempDirectory adapter;
  adapter.Write("adapter_config.json", "{}");
  EXPECT_THAT(ErrorOf(adapter.path()), HasSubstr("adapter_config.json: an adapter (LoRA)"));

  for (const std::string name :
       {"HuggingFaceTB/SmolLM2-135M-Instruct",
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct/tree"}) {
    EXPECT_THAT(
        ErrorOf(name),
        HasSubstr("nothing is downloaded; run `hf download "
                  "HuggingFaceTB/SmolLM2-135M-Instruct --local-dir SmolLM2-135M-Instruct`"));
  }
  for (const std::string path : {"absent", "/a/b", "a/b/c", "./a", "a/", "../a", ".absent/a",
                                 "absent/.a", "-absent/a", "absent/a b"}) {
    EXPECT_THAT(ErrorOf(path), HasSubstr("want a .gguf file")) << path;
  }
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(hub.path());
  std::filesystem::create_directory("models");
  EXPECT_THAT(ErrorOf("models/absent"), HasSubstr("want a .gguf file")) << "the folder is here";
  std::filesystem::current_path(before);
}

TEST(ModelFilesTest, VectorsAreFloat32WhateverTheirType) {
  const TempDirectory directory;
  GgufWriter writer;
  writer.Tensor({.name = "f32", .dims = {2}, .data = Raw(1.5F) + Raw(-2.0F)});
  writer.Tensor({.name = "f16",
                 .type = 1,
                 .dims = {2},
                 .data = Raw<uint16_t>(0x3E00) + Raw<uint16_t>(0xC000)});
  writer.Tensor({.name = "bf16",
                 .type = 30,
                 .dims = {2},
                 .data = Raw<uint16_t>(0x3FC0) + Raw<uint16_t>(0xC000)});
  writer.Tensor(
      {.name = "i32", .type = 26, .dims = {2}, .data = Raw<int32_t>(1) + Raw<int32_t>(2)});
  const auto model = OpenModelFiles(directory.Write("v.gguf", writer.Build()));
  ASSERT_TRUE(model.ok()) << model.status();
  for (const char* name : {"f32", "f16", "bf16"}) {
    const auto vector = model->weights->Vector(name, 2);
    ASSERT_TRUE(vector.ok()) << vector.status();
    EXPECT_THAT(*vector, ElementsAre(1.5F, -2.0F)) << name;
  }
  EXPECT_THAT(std::string(model->weights->Vector("i32", 2).status().message()),
              AllOf(HasSubstr("want one of the types F32, F16, BF16"), HasSubstr("got I32")));
  EXPECT_THAT(std::string(model->weights->Vector("f32", 3).status().message()),
              HasSubstr("want [3], got [2]"));
}

// llama.cpp's own quantizer made the blocks, and PyPI's gguf made the expected floats
// (make_quantised_goldens.py). The floats must be bitwise equal.
TEST(ModelFilesTest, QuantisedTensorsMeanTheGoldenFloats) {
  constexpr int64_t kRows = 2;
  constexpr int64_t kCols = 512;
  const auto model = OpenModelFiles(testing::TestSourcePath("files/testdata/quantised_rows.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  int num_types = 0;
  for (const TensorInfo& tensor : model->weights->tensors()) {
    const auto golden = model->weights->Matrix(tensor.name + ".f32", kRows, kCols);
    if (!golden.ok()) continue;  // this tensor is itself a golden
    ++num_types;
    const auto matrix = model->weights->Matrix(tensor.name, kRows, kCols);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    std::vector<float> want(kRows * kCols);
    ASSERT_EQ(golden->bytes.size(), want.size() * sizeof(float));
    std::memcpy(want.data(), golden->bytes.data(), golden->bytes.size());
    std::vector<float> got(want.size());
    ASSERT_TRUE(kernels::Dequantize(*matrix, 0, kRows, got).ok()) << tensor.name;
    EXPECT_EQ(got, want) << tensor.name;
  }
  EXPECT_EQ(num_types, 10);
}

TEST(ModelFilesTest, OpensShardsThroughTheIndex) {
  const TempDirectory directory;
  directory.Write("config.json", R"({"architectures": ["LlamaForCausalLM"]})");
  directory.Write("tokenizer.json", R"({"model": {}})");
  directory.Write("m-1.safetensors", OneTensor("a", 1, 2));
  directory.Write("m-2.safetensors", OneTensor("b", 3, 4));
  directory.Write("model.safetensors.index.json",
                  R"({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})");
  for (const std::string& path : {directory.path(), directory.path() + "/"}) {
    const auto model = OpenModelFiles(path);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->format(), "safetensors");
    EXPECT_EQ(model->file_name, std::filesystem::path(directory.path()).filename());
    EXPECT_THAT(model->weights->Vector("a", 2).value(), ElementsAre(1, 2));
    EXPECT_THAT(model->weights->Vector("b", 2).value(), ElementsAre(3, 4));
    EXPECT_EQ(TensorBytes(*model), 16);
    EXPECT_EQ(model->hf->tokenizer_json, R"({"model": {}})");
    EXPECT_TRUE(model->hf->generation_config.is_null());
  }

  directory.Write("model.safetensors.index.json",
                  R"({"weight_map": {"a": "m-1.safetensors", "c": "m-2.safetensors"}})");
  EXPECT_THAT(ErrorOf(directory.path()), HasSubstr("want tensor c in m-2.safetensors"));
  directory.Write("model.safetensors.index.json", R"({"weight_map": {"a": "m-3.safetensors"}})");
  EXPECT_THAT(ErrorOf(directory.path()), HasSubstr("want shard m-3.safetensors"));
  directory.Write("m-2.safetensors", OneTensor("a", 3, 4));
  directory.Write("model.safetensors.index.json",
                  R"({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})");
  EXPECT_THAT(ErrorOf(directory.path()), HasSubstr("tensor a: want each name once"));
}

// The header of this file has an odd length, so the float32 data begins at an odd offset in the
// file.
TEST(ModelFilesTest, UnalignedTensorsAreReadable) {
  const TempDirectory directory;
  const std::string header = R"({"odd": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})";
  ASSERT_EQ(header.size() % 2, 1u);
  const auto model =
      OpenModelFiles(directory.Write("m.safetensors", Safetensors(header, Raw(1.5F) + Raw(-2.0F))));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(model->weights->tensors()[0].bytes.data()) % 4, 0u);
  EXPECT_THAT(model->weights->Vector("odd", 2).value(), ElementsAre(1.5F, -2.0F));
  model->weights->DropPages(model->weights->tensors()[0].bytes);
  EXPECT_THAT(model->weights->Vector("odd", 2).value(), ElementsAre(1.5F, -2.0F));
}

TEST(ModelFilesTest, DroppedPagesAreReadAgain) {
  const TempDirectory directory;
  GgufWriter writer;
  std::string data;
  for (int i = 0; i < 20000; ++i) data += Raw(static_cast<float>(i));
  const auto model = OpenModelFiles(directory.Write(
      "big.gguf", writer.Tensor({.name = "t", .dims = {20000}, .data = data}).Build()));
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<float> before = model->weights->Vector("t", 20000).value();
  model->weights->DropPages(model->weights->Find("t")->bytes);
  EXPECT_EQ(model->weights->Vector("t", 20000).value(), before);
  EXPECT_EQ(before[19999], 19999.0F);
}

TEST(ModelFilesTest, ErrorsNameTheCure) {
  const TempDirectory directory;
  EXPECT_THAT(ErrorOf(directory.path()),
              AllOf(HasSubstr("no config.json in"), HasSubstr(".gguf file")));
  EXPECT_THAT(ErrorOf(directory.path() + "/absent"), HasSubstr("no such file or directory"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("no such file"));
  EXPECT_THAT(ErrorOf(directory.Write("notes.txt", "hello")), HasSubstr("not a model file"));
  EXPECT_THAT(ErrorOf(directory.Write("empty.gguf", "")), HasSubstr("empty"));
  const std::string inner = directory.Write("m.gguf", testing::TinyLlamaGguf().Build());
  EXPECT_THAT(ErrorOf(directory.path()), HasSubstr("name the file: " + directory.path()));
  directory.Write("config.json", "{}");
  EXPECT_THAT(ErrorOf(directory.path()),
              HasSubstr("want model.safetensors or model.safetensors.index.json"));
  directory.Write("pytorch_model.bin", "x");
  EXPECT_THAT(ErrorOf(directory.path()), HasSubstr("safe_serialization"));
  directory.Write("config.json", "[]");
  EXPECT_THAT(ErrorOf(directory.path()), HasSubstr("config.json: want a JSON object, got array"));
  directory.Write("config.json", "{");
  EXPECT_THAT(ErrorOf(directory.path()), HasSubstr("not valid JSON"));
}

// Opening a pipe as a file would wait for a writer.
TEST(ModelFilesTest, RefusesWhatIsNoRegularFile) {
  const TempDirectory directory;
  const std::string pipe = directory.path() + "/pipe.gguf";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf(pipe), HasSubstr("want a regular file"));
}

TEST(ModelFilesTest, FindsTheChatTemplateOfEveryFormat) {
  const TempDirectory directory;
  EXPECT_EQ(
      OpenModelFiles(
          directory.Write("t.gguf", GgufWriter().String("tokenizer.chat_template", "G").Build()))
          ->ChatTemplate()
          .value(),
      "G");
  directory.Write("config.json", "{}");
  directory.Write("model.safetensors", OneTensor("a", 1, 2));
  const auto chat_template = [&] { return OpenModelFiles(directory.path())->ChatTemplate(); };
  EXPECT_EQ(chat_template().value(), "");
  directory.Write("tokenizer_config.json", R"({"chat_template": "H"})");
  EXPECT_EQ(chat_template().value(), "H");
  directory.Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  EXPECT_EQ(chat_template().value(), "D");
  directory.Write("tokenizer_config.json",
                  R"({"chat_template": [{"name": "rag", "template": "R"}, 3]})");
  EXPECT_THAT(std::string(chat_template().status().message()), HasSubstr("\"default\""));
  directory.Write("chat_template.jinja", "J");
  EXPECT_EQ(chat_template().value(), "J");
}

TEST(ModelFilesTest, AFileReplacesTheChatTemplate) {
  const TempDirectory directory;
  auto model = OpenModelFiles(
      directory.Write("t.gguf", GgufWriter().String("tokenizer.chat_template", "G").Build()));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(std::string(model->ReplaceChatTemplate(directory.path() + "/none").message()),
              HasSubstr("/none: open: No such file"));
  ASSERT_TRUE(model->ReplaceChatTemplate(directory.Write("new.jinja", "N")).ok());
  EXPECT_EQ(model->ChatTemplate().value(), "N");
}

TEST(ModelFilesTest, OpensADirectoryWithAllItsFiles) {
  const auto model = OpenModelFiles("models/quire-stories");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->weights->tensors().size(), 38u);
  EXPECT_EQ(TensorBytes(*model), int64_t{2} * 5'180'672);  // bfloat16
  EXPECT_EQ(model->weights->Vector("transformer.norm_f.weight", 256).value().size(), 256u);
  EXPECT_TRUE(model->hf->generation_config.is_object());
  EXPECT_TRUE(model->hf->tokenizer_config.is_object());
  EXPECT_FALSE(model->hf->tokenizer_json.empty());
}

}  // namespace
}  // namespace quire::files
