// Tests whole models whose weights are e4m3, in the files of Hugging Face. The expected logits come
// from a float64 run (make_fp8_goldens.py).

#include <deque>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/json.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "engine/model/scaled_matrix.h"
#include "files/model_files.h"
#include "kernels/backend_registry.h"
#include "kernels/quant/dequantize.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/test_data.h"

namespace quire::engine {
namespace {

using kernels::WeightType;
using ::testing::HasSubstr;

std::string TestDataFile(const std::string& name) {
  return testing::TestSourcePath("engine/model/testdata/" + name);
}

TEST(Fp8WeightsTest, LogitsAndArgmaxAgreeWithFloat64ForEveryLayoutOfScales) {
  const std::string path = TestDataFile("fp8_goldens.json");
  const nlohmann::json file = *base::ParseJson(testing::ReadFile(path), path);
  int runs = 0;
  for (const nlohmann::json& entry : file.at("cases")) {
    const testing::GoldenLogits golden = testing::ReadGoldenLogits(entry);
    const std::string directory = entry.at("directory");
    const absl::StatusOr<files::OpenedModel> files = files::OpenModelFiles(TestDataFile(directory));
    ASSERT_TRUE(files.ok()) << files.status();
    const absl::StatusOr<ModelConfig> config = ReadModelConfig(*files);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->weight_type, "F8_E4M3");
    for (const char* isa : {"portable", "avx2", "avx512", "amx"}) {
      for (const bool pack : {true, false}) {
        const auto backend = kernels::CreateBackend(
            {.name = "cpu", .cpu_isa = isa, .num_threads = 2, .pack_weights = pack});
        if (!backend.ok()) continue;  // this machine has no such ISA
        SCOPED_TRACE(directory + " " + isa);
        auto model = CreateModel(*config, *files, **backend, testing::ModelRunner::kLimits);
        ASSERT_TRUE(model.ok()) << model.status();
        testing::ModelRunner runner(*std::move(model), **backend);
        testing::ExpectAgreement(directory + " " + isa, golden, runner.Prefill(golden.ids));
        ++runs;
      }
    }
  }
  EXPECT_GE(runs, 6) << "the portable path is on every machine";
}

// A model file of one e4m3 matrix of 192 x 128 and its scales.
class OneMatrix final : public files::WeightMap {
 public:
  OneMatrix() : codes_(192 * 128) {
    for (size_t i = 0; i < codes_.size(); ++i) {
      const auto code = static_cast<uint8_t>(i * 37 % 256);
      codes_[i] = static_cast<std::byte>((code & 0x7f) == 0x7f ? 0 : code);
    }
    tensors_ = {{"w", WeightType::kF8E4M3, {192, 128}, codes_}};
  }
  void SetCode(size_t at, uint8_t code) { codes_[at] = static_cast<std::byte>(code); }
  void AddScales(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    scales_.push_back(std::move(values));
    tensors_.push_back(
        {name, WeightType::kF32, std::move(shape), std::as_bytes(std::span(scales_.back()))});
  }
  void AddTensor(files::TensorInfo tensor) { tensors_.push_back(std::move(tensor)); }

  const std::vector<files::TensorInfo>& tensors() const override { return tensors_; }
  const files::TensorInfo* Find(std::string_view name) const override {
    for (const files::TensorInfo& tensor : tensors_) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  void DropPages(std::span<const std::byte>) const override {}

 private:
  std::vector<std::byte> codes_;
  std::deque<std::vector<float>> scales_;
  std::vector<files::TensorInfo> tensors_;
};

std::vector<float> Numbers(WeightType type, std::span<const std::byte> bytes) {
  std::vector<float> numbers(192 * 128);
  EXPECT_TRUE(kernels::Dequantize({type, 192, 128, bytes}, 0, 192, numbers).ok());
  return numbers;
}

// Returns n different scales.
std::vector<float> Counting(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.5f * static_cast<float>(i + 1);
  return values;
}

TEST(ScaledMatrixTest, EveryShapeOfScalesGivesEachWeightItsScale) {
  struct Case {
    std::string name;
    std::vector<int64_t> shape;
    int64_t rows_of_scale;
  };
  for (const Case& c :
       {Case{"w_scale", {}, 192}, Case{"w_scale", {1}, 192}, Case{"w_scale", {192}, 1},
        Case{"w_scale_inv", {192, 1}, 1}, Case{"w_scale_inv", {2, 1}, 128}}) {
    SCOPED_TRACE(files::ShapeToString(c.shape));
    OneMatrix file;
    const std::vector<float> scales = Counting(files::NumElements(c.shape));
    file.AddScales(c.name, c.shape, scales);
    EXPECT_EQ(*CheckScales("w", 192, 128, file), c.name);
    const std::vector<float> codes = Numbers(WeightType::kF8E4M3, file.Find("w")->bytes);
    const std::vector<std::byte> bytes = *WithScales("w", 192, 128, file);
    const std::vector<float> got = Numbers(WeightType::kF8E4M3Scaled, bytes);
    for (int64_t i = 0; i < 192 * 128; ++i) {
      const auto scale = static_cast<size_t>(i / 128 / c.rows_of_scale);
      ASSERT_EQ(got[static_cast<size_t>(i)], codes[static_cast<size_t>(i)] * scales[scale]) << i;
    }
  }
}

std::string ErrorOf(const OneMatrix& file, int64_t rows = 192, int64_t cols = 128) {
  const auto matrix = WithScales("w", rows, cols, file);
  EXPECT_FALSE(matrix.ok());
  return std::string(matrix.status().message());
}

TEST(ScaledMatrixTest, HostileFilesAreRefusedByName) {
  EXPECT_THAT(
      ErrorOf(OneMatrix()),
      HasSubstr("tensor w: want the scales of its F8_E4M3 weights in w_scale or w_scale_inv"));
  OneMatrix two;
  two.AddScales("w_scale", {}, {1.0f});
  two.AddScales("w_scale_inv", {}, {1.0f});
  EXPECT_THAT(ErrorOf(two), HasSubstr("tensor w_scale_inv: want one tensor of scales"));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2},
                                            {128},
                                            {191},
                                            {1, 192},
                                            {1, 1},
                                            {2, 2},
                                            {1, 2},
                                            {192, 128},
                                            {0},
                                            {1, 1, 1}}) {
    OneMatrix wrong;
    wrong.AddScales("w_scale", shape, Counting(files::NumElements(shape)));
    EXPECT_THAT(ErrorOf(wrong),
                HasSubstr("tensor w_scale: want [], [1], [192], [192, 1] or, for blocks of 128 x "
                          "128, [2, 1], got " +
                          files::ShapeToString(shape)));
  }
  using Limits = std::numeric_limits<float>;
  for (const float bad :
       {0.0f, -0.0f, -1.0f, 128.5f, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    OneMatrix wrong;
    wrong.AddScales("w_scale", {2, 1}, {128.0f, bad});
    EXPECT_THAT(ErrorOf(wrong), HasSubstr("tensor w_scale: element 1: want a scale above 0 and at "
                                          "most 128, got"))
        << bad;
  }
  for (const uint8_t nan : {0x7f, 0xff}) {
    OneMatrix wrong;
    wrong.AddScales("w_scale", {}, {1.0f});
    wrong.SetCode(191 * 128 + 5, nan);
    EXPECT_THAT(ErrorOf(wrong), HasSubstr("tensor w: row 191, column 5: want a number, got NaN"));
  }
  OneMatrix no_float;
  no_float.AddTensor({"w_scale", WeightType::kF8E4M3, {}, no_float.Find("w")->bytes.first(1)});
  EXPECT_THAT(ErrorOf(no_float), HasSubstr("tensor w_scale: want scales in F32, F16 or BF16"));
  EXPECT_THAT(ErrorOf(OneMatrix(), 256, 96),
              HasSubstr("tensor w: want F8_E4M3 in rows of a multiple of 64 weights, got 96"));
}

}  // namespace
}  // namespace quire::engine
