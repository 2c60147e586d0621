// Tests whole models with e4m3 weights on a CUDA backend that multiplies in e4m3, against the same
// models with 16-bit activations.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "base/check.h"
#include "base/json.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "files/model_files.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/quant/float8.h"
#include "tests/engine/model/counting_cuda_model.h"
#include "tests/engine/model/model_runner.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/testing/in_memory_weights.h"
#include "tests/testing/test_data.h"

namespace quire::engine {
namespace {

using kernels::DType;
using kernels::WeightType;
using testing::CountingCudaModel;
using testing::Logits;
using testing::ModelRunner;
using testing::RelativeError;

// The options of a backend in bf16.
kernels::cuda::CudaBackendOptions Options(bool fp8_products) {
  return {.activation_dtype = DType::kBF16, .fp8_products = fp8_products};
}

// Another model's tensors, with the matrices of the layers in e4m3 and a scale for each block of
// 128 x 128.
class BlockScaledWeights final : public files::TensorList {
 public:
  explicit BlockScaledWeights(const files::WeightMap& from) {
    for (const files::TensorInfo& tensor : from.tensors()) {
      if (tensor.shape.size() != 2 || tensor.name.find("layers.") == std::string::npos) {
        mutable_tensors().push_back(tensor);
        continue;
      }
      const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
      std::vector<float> values(static_cast<size_t>(rows * cols));
      std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
      const int64_t blocks_of_row = cols / 128;
      std::vector<float>& scales =
          scales_.emplace_back(static_cast<size_t>(rows / 128 * blocks_of_row), 0.0f);
      const auto scale_of = [&](int64_t i) -> float& {
        return scales[static_cast<size_t>(i / cols / 128 * blocks_of_row + i % cols / 128)];
      };
      for (int64_t i = 0; i < rows * cols; ++i) {
        float& scale = scale_of(i);
        scale = std::max(scale, std::abs(values[static_cast<size_t>(i)]) / kernels::kLargestE4M3);
      }
      // No two are equal, so no matrix looks as if its rows had a scale each.
      for (size_t i = 0; i < scales.size(); ++i) scales[i] *= 1.0f + static_cast<float>(i) / 64.0f;
      std::vector<std::byte>& codes = codes_.emplace_back(values.size());
      for (int64_t i = 0; i < rows * cols; ++i) {
        codes[static_cast<size_t>(i)] = static_cast<std::byte>(
            kernels::F32ToE4M3(values[static_cast<size_t>(i)] / scale_of(i)));
      }
      mutable_tensors().push_back({tensor.name, WeightType::kF8E4M3, tensor.shape, codes});
      mutable_tensors().push_back({tensor.name + "_scale_inv",
                                   WeightType::kF32,
                                   {rows / 128, blocks_of_row},
                                   std::as_bytes(std::span(scales))});
    }
  }

 private:
  std::deque<std::vector<float>> scales_;
  std::deque<std::vector<std::byte>> codes_;
};

std::string TestDataFile(const std::string& name) {
  return testing::TestSourcePath("engine/model/testdata/" + name);
}

// Returns the bound of the relative error of logits with `num_inputs` roundings to e4m3 between the
// prompt and the logits.
//
// Rounding to e4m3 changes an element by at most 2^-4 of it (or, below the normal numbers, by
// 2^-10 of the scale). Roundings add up as independent errors do. Those of bf16, 14 for a layer
// and four, as cuda_packed_weights_test.cc counts them, are of both runs.
double RoundingBound(const ModelConfig& config, int num_inputs) {
  const double of_bf16 = 2.0 * (14.0 * static_cast<double>(config.num_layers()) + 4.0) * 0x1p-16;
  return std::sqrt(num_inputs * 0x1p-8 + of_bf16);
}

// Runs a prompt with and without products in e4m3. `num_inputs` is the number of roundings to e4m3
// between the prompt and the logits, and `num_gemms` that of the GEMMs of a step in e4m3.
void ExpectAgreement(const std::string& name, const ModelConfig& config,
                     const files::OpenedModel& files, int num_inputs, int num_gemms) {
  std::vector<int32_t> ids(70);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * i % 31);
  CountingCudaModel exact(config, files, Options(false)), rounded(config, files, Options(true));
  const Logits want = exact.runner->Prefill(ids);
  EXPECT_EQ(exact.gemms.in_e4m3, 0);
  const Logits whole = rounded.runner->Prefill(ids);
  EXPECT_EQ(rounded.gemms.in_e4m3, num_gemms);
  // Few tokens take the same way.
  const Logits chunked = rounded.runner->Prefill(ids, 7);
  EXPECT_EQ(rounded.gemms.in_e4m3, num_gemms * 11);
  EXPECT_LE(rounded.weight_bytes, exact.weight_bytes);

  const double bound = RoundingBound(config, num_inputs);
  EXPECT_LE(RelativeError(whole, want), bound);
  EXPECT_LE(RelativeError(chunked, want), bound);
  EXPECT_NE(whole, want);
  ::testing::Test::RecordProperty(name, std::to_string(RelativeError(whole, want) / bound));
}

TEST(CudaFp8ProductsTest, LogitsAreThoseOf16BitActivationsButForTheirRounding) {
  struct Case {
    std::string directory;
    int num_inputs, num_products;
  };
  // Inputs: of q, k and v, of o, of gate and up, and of down; with scales of rows, of the head too.
  // The file with scales of blocks has matrices of 192 x 192, which stay packed. Only o has rows
  // of one block.
  for (const Case& c :
       {Case{"fp8_tensor", 4, 4}, Case{"fp8_channel", 5, 5}, Case{"fp8_block", 1, 1}}) {
    SCOPED_TRACE(c.directory);
    const files::OpenedModel files = *files::OpenModelFiles(TestDataFile(c.directory));
    ExpectAgreement(c.directory, *ReadModelConfig(files), files, c.num_inputs, c.num_products);
  }
}

// Returns a model of two layers whose matrices are whole blocks.
std::pair<ModelConfig, files::OpenedModel> BlockScaledModel(testing::InMemoryWeights& floats) {
  const testing::TinyLlamaShape shape = {.vocab_size = 32,
                                         .hidden_size = 256,
                                         .intermediate_size = 384,
                                         .num_hidden_layers = 2,
                                         .num_attention_heads = 8,
                                         .num_key_value_heads = 8,
                                         .head_dim = 16};
  std::pair<ModelConfig, files::OpenedModel> model;
  model.second = *files::OpenModelFiles(TestDataFile("fp8_block"));
  model.first = *ReadModelConfig(model.second);
  model.first.hidden_size = shape.hidden_size;
  model.first.layers = testing::LayersOf(shape);
  floats = testing::MakeTinyLlama(shape);
  model.second.weights = std::make_unique<BlockScaledWeights>(floats);
  return model;
}

TEST(CudaFp8ProductsTest, ScalesOfBlocksDoTheSame) {
  testing::InMemoryWeights floats;
  const auto [config, files] = BlockScaledModel(floats);
  // Six of 8 products have scales of blocks, and the tokens after the last four another GEMM. The
  // other two have 128 columns, so one scale for each row.
  ExpectAgreement("whole_blocks", config, files, 8, 2 + 2 * 6);
}

// A product of more tokens may add in another order, so that a number becomes its neighbour in
// e4m3.
TEST(CudaFp8ProductsTest, ASequenceHasTheLogitsThatItHasAloneButForTheirRounding) {
  testing::InMemoryWeights floats;
  const auto [config, files] = BlockScaledModel(floats);
  CountingCudaModel model(config, files, Options(true));
  std::vector<int32_t> first(40), second(23);
  for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<int32_t>(i * 5 % 32);
  for (size_t i = 0; i < second.size(); ++i) second[i] = static_cast<int32_t>(i * 3 % 32);
  const testing::StepChunk of_first = {&first, 0, 40, {7, 2, 19}};
  const testing::StepChunk of_second = {&second, 0, 23, {4, 30}};
  // No sequence is so long that its attention is cut.
  const Logits alone = model.runner->Step({of_second});
  const Logits both = model.runner->Step({of_first, of_second});
  EXPECT_LE(RelativeError(Logits(both.begin() + 40 * 32, both.end()), alone),
            RoundingBound(config, 8));
}

}  // namespace
}  // namespace quire::engine
