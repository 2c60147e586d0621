#include "files/model_digest.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/files/gguf_writer.h"
#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"

namespace quire::files {
namespace {

using testing::GgufWriter;
using testing::Raw;

constexpr size_t kTensorBytes = 16384;

// Tensors whose bytes a test can change.
class Tensors {
 public:
  // A model of two tensors and a directory's files.
  OpenedModel Open() const {
    OpenedModel model;
    std::vector<TensorInfo> infos;
    for (const Tensor& tensor : tensors) {
      infos.push_back(
          {.name = tensor.name, .type = tensor.type, .shape = tensor.shape, .bytes = tensor.bytes});
    }
    model.weights = std::make_unique<TensorList>(std::move(infos));
    model.hf = hf;
    model.chat_template_jinja = chat_template;
    return model;
  }

  struct Tensor {
    std::string name;
    kernels::WeightType type = kernels::WeightType::kF32;
    std::vector<int64_t> shape = {64, 64};
    std::vector<std::byte> bytes = std::vector<std::byte>(kTensorBytes);
  };
  std::vector<Tensor> tensors = {{.name = "a"}, {.name = "b"}};
  HfFiles hf = {.config = {{"hidden_size", 64}},
                .generation_config = {{"eos_token_id", 2}},
                .tokenizer_config = {{"add_bos_token", true}},
                .tokenizer_json = "{}"};
  std::string chat_template;
};

TEST(ModelDigestTest, IsSha256InHexadecimal) {
  const std::string digest = ModelDigest(Tensors().Open());
  EXPECT_EQ(digest.size(), 64);
  EXPECT_EQ(digest.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(digest, ModelDigest(Tensors().Open()));
}

TEST(ModelDigestTest, ChangesWithEachPart) {
  const std::function<void(Tensors&)> changes[] = {
      [](Tensors& m) { m.hf.config["hidden_size"] = 65; },
      [](Tensors& m) { m.hf.generation_config["eos_token_id"] = 3; },
      [](Tensors& m) { m.hf.tokenizer_config["add_bos_token"] = false; },
      [](Tensors& m) { m.hf.tokenizer_json = "{ }"; },
      [](Tensors& m) { m.chat_template = "{{ x }}"; },
      [](Tensors& m) { m.tensors[1].name = "c"; },
      [](Tensors& m) { m.tensors[1].type = kernels::WeightType::kBF16; },
      [](Tensors& m) {
        m.tensors[1].shape = {32, 128};
      },
      [](Tensors& m) { m.tensors[1].bytes.resize(2 * kTensorBytes); },
      [](Tensors& m) { m.tensors.pop_back(); },
      // The ends of the middle 4 KiB of either tensor.
      [](Tensors& m) { m.tensors[0].bytes[6144] = std::byte{1}; },
      [](Tensors& m) { m.tensors[1].bytes[10239] = std::byte{1}; },
  };
  std::vector<std::string> digests = {ModelDigest(Tensors().Open())};
  for (const auto& change : changes) {
    Tensors model;
    change(model);
    digests.push_back(ModelDigest(model.Open()));
  }
  std::ranges::sort(digests);
  EXPECT_EQ(std::ranges::adjacent_find(digests), digests.end());
}

TEST(ModelDigestTest, EachFieldOfAGgufValueCounts) {
  const testing::TempDirectory directory;
  const auto digest = [&](const GgufWriter& writer) {
    return ModelDigest(*OpenModelFiles(directory.Write("m.gguf", writer.Build())));
  };
  const auto array = [](GgufType type, std::vector<int32_t> values) {
    return GgufWriter().Array("k", type, values);
  };
  std::vector<std::string> digests = {
      digest(GgufWriter()),
      digest(GgufWriter().U32("k", 1)),
      digest(GgufWriter().U32("l", 1)),
      digest(GgufWriter().U32("k", 2)),
      digest(GgufWriter().Add("k", GgufType::kInt32, Raw<int32_t>(1))),
      digest(GgufWriter().U32("k", 1).U32("l", 1)),
      digest(array(GgufType::kInt32, {1})),
      digest(array(GgufType::kUint32, {1})),
      digest(array(GgufType::kInt32, {1, 1})),
      digest(GgufWriter().Strings("k", {"ab", "c"})),
      digest(GgufWriter().Strings("k", {"a", "bc"})),
      digest(GgufWriter().Zeros("k", {1}))};
  EXPECT_EQ(digests[1], digest(GgufWriter().U32("k", 1)));
  std::ranges::sort(digests);
  EXPECT_EQ(std::ranges::adjacent_find(digests), digests.end());
}

TEST(ModelDigestTest, OfMoreTensorsFewerBytesCount) {
  // 4,096 tensors count with 4 KiB each, and twice as many with half of that.
  for (const size_t num_tensors : {size_t{4096}, size_t{8192}}) {
    const size_t half = (size_t{8} << 20) / num_tensors;
    std::vector<std::byte> bytes(kTensorBytes);
    const auto digest = [&] {
      std::vector<TensorInfo> infos;
      for (size_t i = 0; i < num_tensors; ++i) {
        infos.push_back({.name = std::to_string(i), .shape = {64, 64}, .bytes = bytes});
      }
      OpenedModel model;
      model.weights = std::make_unique<TensorList>(std::move(infos));
      return ModelDigest(model);
    };
    const std::string before = digest();
    const auto counts = [&](size_t place) {
      bytes[place] = std::byte{1};
      const bool differs = digest() != before;
      bytes[place] = std::byte{0};
      return differs;
    };
    EXPECT_FALSE(counts(kTensorBytes / 2 - half - 1)) << num_tensors;
    EXPECT_TRUE(counts(kTensorBytes / 2 - half)) << num_tensors;
    EXPECT_TRUE(counts(kTensorBytes / 2 + half - 1)) << num_tensors;
    EXPECT_FALSE(counts(kTensorBytes / 2 + half)) << num_tensors;
  }
}

TEST(ModelDigestTest, LeavesOutTheOtherBytes) {
  for (const size_t place : {size_t{0}, size_t{6143}, size_t{10240}, kTensorBytes - 1}) {
    Tensors model;
    model.tensors[0].bytes[place] = std::byte{1};
    EXPECT_EQ(ModelDigest(model.Open()), ModelDigest(Tensors().Open())) << place;
  }
}

TEST(ModelDigestTest, TheOrderOfTensorsDoesNotMatter) {
  Tensors model;
  std::swap(model.tensors[0], model.tensors[1]);
  EXPECT_EQ(ModelDigest(model.Open()), ModelDigest(Tensors().Open()));
}

TEST(ModelDigestTest, TheBundledModelOpensToTheSameDigestEachTime) {
  const std::string path = testing::TestSourcePath("../models/quire-stories");
  const auto one = OpenModelFiles(path);
  const auto other = OpenModelFiles(path);
  ASSERT_TRUE(one.ok() && other.ok()) << one.status();
  EXPECT_EQ(ModelDigest(*one), ModelDigest(*other));
}

}  // namespace
}  // namespace quire::files
