#include "convert/row_reader.h"

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "files/model_files.h"
#include "kernels/quant/dequantize.h"
#include "tests/testing/in_memory_weights.h"
#include "tests/testing/test_data.h"

namespace quire::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns three tensors. "matrix" of [6, 2] and "stack" of [3, 2, 2] have the values 0, 1, 2, ...
// "vector" has the first six of these values.
testing::InMemoryWeights CountingWeights() {
  std::vector<float> values(12);
  std::iota(values.begin(), values.end(), 0.0f);
  testing::InMemoryWeights weights;
  weights.Add("matrix", {6, 2}, values);
  weights.Add("stack", {3, 2, 2}, values);
  values.resize(6);
  weights.Add("vector", {6}, values);
  return weights;
}

std::vector<float> ReadAll(const RowReader& reader) {
  std::vector<float> rows(static_cast<size_t>(reader.num_rows() * reader.cols()));
  EXPECT_TRUE(reader.Read(0, reader.num_rows(), rows).ok());
  return rows;
}

TEST(RowReaderTest, RunsFollowOneAnother) {
  const testing::InMemoryWeights weights = CountingWeights();
  const engine::NamedRows matrix = {.name = "matrix", .rows = 6};
  const engine::NamedRows stack = {.name = "stack", .rows = 2, .num_matrices = 3};
  const PlannedTensor plan = {.rows = {{matrix, 4, 2}, {stack, 1, 3}, {matrix, 0, 1}}, .cols = 2};
  const RowReader reader = *RowReader::Create(plan, weights);
  EXPECT_EQ(reader.num_rows(), 6);
  EXPECT_THAT(ReadAll(reader), ElementsAre(8, 9, 10, 11, 2, 3, 4, 5, 6, 7, 0, 1));
  // The three rows that are read here begin inside the first run of rows and end inside the second.
  std::vector<float> part(6);
  ASSERT_TRUE(reader.Read(1, 3, part).ok());
  EXPECT_THAT(part, ElementsAre(10, 11, 2, 3, 4, 5));
}

TEST(RowReaderTest, AMatrixInAnotherFormIsRewritten) {
  const testing::InMemoryWeights weights = CountingWeights();
  const engine::NamedRows turned = {
      .name = "matrix", .rows = 2, .form = engine::NamedRows::Form::kTransposed};
  const RowReader transposed =
      *RowReader::Create({.rows = {{turned, 1, 1}, {turned, 0, 1}}, .cols = 6}, weights);
  EXPECT_THAT(ReadAll(transposed), ElementsAre(1, 3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10));
  const engine::NamedRows unit = {
      .name = "matrix", .rows = 6, .form = engine::NamedRows::Form::kUnitRows};
  const RowReader rows = *RowReader::Create({.rows = {{unit, 2, 1}}, .cols = 2}, weights);
  EXPECT_THAT(ReadAll(rows), ElementsAre(static_cast<float>(4 / std::sqrt(41.0)),
                                         static_cast<float>(5 / std::sqrt(41.0))));
}

TEST(RowReaderTest, AMatrixOfE4M3HasItsScales) {
  const files::OpenedModel model =
      *files::OpenModelFiles(testing::TestSourcePath("engine/model/testdata/fp8_channel"));
  const std::string name = "model.layers.0.self_attn.k_proj.weight";
  const files::WeightMap& weights = *model.weights;
  const engine::NamedRows matrix = {.name = name, .rows = 32};
  const RowReader reader = *RowReader::Create({.rows = {{matrix, 30, 2}}, .cols = 192}, weights);
  std::vector<float> codes(32 * 192);
  ASSERT_TRUE(kernels::Dequantize(*weights.Matrix(name, 32, 192), 0, 32, codes).ok());
  std::vector<float> scales(32);
  ASSERT_TRUE(kernels::Dequantize(*weights.Matrix(name + "_scale", 32, 1), 0, 32, scales).ok());
  const std::vector<float> got = ReadAll(reader);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i], codes[30 * 192 + i] * scales[30 + i / 192]) << i;
  }
}

TEST(RowReaderTest, AVectorIsOneRowAndHasItsOffset) {
  const testing::InMemoryWeights weights = CountingWeights();
  const engine::NamedRows vector = {.name = "vector", .rows = 6};
  const RowReader reader =
      *RowReader::Create({.rows = {{vector, 3, 2}, {vector, 0, 1}}, .offset = 1.0f}, weights);
  EXPECT_EQ(reader.num_rows(), 1);
  EXPECT_THAT(ReadAll(reader), ElementsAre(4, 5, 1));
}

TEST(RowReaderTest, SourcesThatAreMissingOrOtherwiseShapedAreNamed) {
  const testing::InMemoryWeights weights = CountingWeights();
  const auto check = [&](const engine::NamedRows& source, int64_t cols) {
    return std::string(
        CheckSources({.rows = {{source, 0, source.rows}}, .cols = cols}, weights).message());
  };
  EXPECT_THAT(check({.name = "nothing", .rows = 6}, 2), HasSubstr("nothing"));
  EXPECT_THAT(check({.name = "matrix", .rows = 5}, 2), HasSubstr("[6, 2]"));
  EXPECT_THAT(check({.name = "vector", .rows = 5}, 0), HasSubstr("vector"));
  EXPECT_EQ(check({.name = "matrix", .rows = 6}, 2), "");
}

}  // namespace
}  // namespace quire::convert
