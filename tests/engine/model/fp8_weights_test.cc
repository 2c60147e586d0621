// Tests whole models whose weights are e4m3, in the files of Hugging Face. The expected logits come
// from a float64 run (make_fp8_goldens.py).

#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/json.h"
#include "engine/model/layers/parameter_loader.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "engine/model/scaled_matrix.h"
#include "files/model_files.h"
#include "kernels/backend_registry.h"
#include "kernels/quant/dequantize.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/edited_weights.h"
#include "tests/testing/test_data.h"

namespace quire::engine {
namespace {

using kernels::WeightType;
using testing::EditedWeights;
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

TEST(Fp8WeightsTest, AModelThatWouldLoseAScaleIsRefused) {
  files::OpenedModel files = *files::OpenModelFiles(TestDataFile("fp8_channel"));
  const ModelConfig config = *ReadModelConfig(files);
  const std::string projection = "model.layers.0.self_attn.q_proj.weight";
  const auto original = std::move(files.weights);
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 1});
  const auto error = [&](const std::function<void(EditedWeights&)>& edit) {
    auto edited = std::make_unique<EditedWeights>(*original);
    edit(*edited);
    files.weights = std::move(edited);
    return std::string(
        CreateModel(config, files, *backend, testing::ModelRunner::kLimits).status().message());
  };
  EXPECT_EQ(error([](EditedWeights&) {}), "");
  EXPECT_THAT(error([&](EditedWeights& weights) { weights.Remove(projection + "_scale"); }),
              HasSubstr("tensor " + projection + ": want the scales"));
  // Another matrix has the shape, in BF16, of the head. Its scales would belong to nothing.
  EXPECT_THAT(error([&](EditedWeights& weights) {
                weights.At("lm_head.weight").type = WeightType::kBF16;
                weights.At("lm_head.weight").bytes = weights.At("model.embed_tokens.weight").bytes;
              }),
              HasSubstr("tensor lm_head.weight_scale: want a tensor of the llama architecture"));
  EXPECT_THAT(error([&](EditedWeights& weights) {
                files::TensorInfo& norm = weights.At("model.norm.weight");
                norm.type = WeightType::kF8E4M3;
                norm.bytes = norm.bytes.first(192);
              }),
              HasSubstr("tensor model.norm.weight: want F8_E4M3 only in a matrix of its own"));
  EXPECT_THAT(error([&](EditedWeights& weights) {
                files::TensorInfo smoothed = weights.At("model.norm.weight");
                smoothed.name = "model.layers.0.self_attn.q_proj.pre_quant_scale";
                weights.Add(smoothed);
              }),
              HasSubstr("q_proj.pre_quant_scale: want a tensor of the llama architecture"));
}

// A model file of one e4m3 matrix of 192 x 128 and its scales.
class OneMatrix final : public files::TensorList {
 public:
  OneMatrix() : codes_(192 * 128) {
    for (size_t i = 0; i < codes_.size(); ++i) {
      const auto code = static_cast<uint8_t>(i * 37 % 256);
      codes_[i] = static_cast<std::byte>((code & 0x7f) == 0x7f ? 0 : code);
    }
    AddTensor({"w", WeightType::kF8E4M3, {192, 128}, codes_});
  }
  void SetCode(size_t at, uint8_t code) { codes_[at] = static_cast<std::byte>(code); }
  void AddScales(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    scales_.push_back(std::move(values));
    AddTensor({name, WeightType::kF32, std::move(shape), std::as_bytes(std::span(scales_.back()))});
  }
  void AddTensor(files::TensorInfo tensor) { mutable_tensors().push_back(std::move(tensor)); }

 private:
  std::vector<std::byte> codes_;
  std::deque<std::vector<float>> scales_;
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

// A rank of several has some of the columns, which must be whole blocks.
TEST(ScaledMatrixTest, ColumnsKeepTheirScales) {
  OneMatrix file;
  file.AddScales("w_scale_inv", {2, 1}, {0.5f, 3.0f});
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 1});
  ParameterLoader loader(file, *backend);
  StoredParameter stored = {.parts = {{"w", 192}}, .cols = 128, .wanted_cols = {64, 128}};
  const auto matrix = loader.Matrix(stored);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  const std::vector<float> codes = Numbers(WeightType::kF8E4M3, file.Find("w")->bytes);
  std::vector<int32_t> ids = {127, 128};
  std::vector<float> rows(2 * 64);
  ASSERT_TRUE(backend
                  ->Embed({.out = kernels::TensorView(rows.data(), kernels::DType::kF32, {2, 64}),
                           .token_ids = kernels::TensorView(ids.data(), kernels::DType::kI32, {2}),
                           .weight = matrix->get()})
                  .ok());
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(rows[static_cast<size_t>(i)], 0.5f * codes[static_cast<size_t>(127 * 128 + 64 + i)]);
    EXPECT_EQ(rows[static_cast<size_t>(64 + i)],
              3.0f * codes[static_cast<size_t>(128 * 128 + 64 + i)]);
  }
  stored.wanted_cols = {32, 96};
  EXPECT_THAT(std::string(loader.Matrix(stored).status().message()),
              HasSubstr("want multiples of 64, as F8_E4M3_SCALED is stored in blocks"));
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
