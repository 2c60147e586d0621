// Tests whole models on the CUDA backend whose weights stay packed, against the same model with
// expanded weights, and against the saved logits of k_quant_test.cc.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "base/check.h"
#include "base/json.h"
#include "engine/model/decoder.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "engine/model/scaled_matrix.h"
#include "files/model_files.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/quantize.h"
#include "tests/engine/model/counting_cuda_model.h"
#include "tests/engine/model/golden_models.h"
#include "tests/engine/model/model_runner.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/testing/in_memory_weights.h"
#include "tests/testing/test_data.h"

namespace quire::engine {
namespace {

using kernels::DType;
using kernels::WeightType;
using testing::CountingCudaModel;
using testing::GoldenModel;
using testing::Logits;
using testing::ModelRunner;
using testing::RelativeError;

// Another model's tensors, with all matrices in one type, where it has whole blocks. Routers of
// mixtures are float32, as in files.
class RetypedWeights final : public files::TensorList {
 public:
  RetypedWeights(const files::WeightMap& from, WeightType type) {
    for (const files::TensorInfo& tensor : from.tensors()) {
      const int64_t cols = tensor.shape.back();
      const int64_t rows = files::NumElements(tensor.shape) / cols;
      std::vector<float> values(static_cast<size_t>(rows * cols));
      QUIRE_CHECK(
          kernels::Dequantize({tensor.type, rows, cols, tensor.bytes}, 0, rows, values).ok());
      const bool retyped = tensor.shape.size() > 1 &&
                           cols % kernels::Traits(type).block_elements == 0 &&
                           tensor.name.find("block_sparse_moe.gate") == std::string::npos;
      const WeightType to = retyped ? type : WeightType::kF32;
      const kernels::WeightTypeTraits& traits = kernels::Traits(to);
      std::vector<std::byte>& bytes =
          storage_.emplace_back(values.size() / static_cast<size_t>(traits.block_elements) *
                                static_cast<size_t>(traits.block_bytes));
      QUIRE_CHECK(kernels::Quantize(to, values, cols, bytes).ok());
      mutable_tensors().push_back({tensor.name, to, tensor.shape, bytes});
    }
  }

 private:
  std::deque<std::vector<std::byte>> storage_;
};

// Returns the weights of a file as float32, those of e4m3 with their scales.
std::unique_ptr<testing::InMemoryWeights> AsFloats(const files::WeightMap& weights) {
  auto floats = std::make_unique<testing::InMemoryWeights>();
  for (const files::TensorInfo& tensor : weights.tensors()) {
    if (tensor.name.find("_scale") != std::string::npos) continue;
    const int64_t size = files::NumElements(tensor.shape), cols = tensor.shape.back();
    kernels::WeightView view = {tensor.type, size / cols, cols, tensor.bytes};
    std::vector<std::byte> scaled;
    if (tensor.type == WeightType::kF8E4M3) {
      scaled = *WithScales(tensor.name, view.rows, cols, weights);
      view = {WeightType::kF8E4M3Scaled, view.rows, cols, scaled};
    }
    std::vector<float> values(static_cast<size_t>(size));
    EXPECT_TRUE(kernels::Dequantize(view, 0, view.rows, values).ok());
    floats->Add(tensor.name, tensor.shape, std::move(values));
  }
  return floats;
}

TEST(CudaPackedWeightsTest, E4M3StaysPackedAndGivesTheLogitsOfExpandedWeights) {
  const std::string folder = testing::TestSourcePath("engine/model/testdata/");
  const std::string path = folder + "fp8_goldens.json";
  const nlohmann::json file = *base::ParseJson(testing::ReadFile(path), path);
  for (const nlohmann::json& entry : file.at("cases")) {
    const testing::GoldenLogits golden = testing::ReadGoldenLogits(entry);
    const std::string directory = folder + std::string(entry.at("directory"));
    const files::OpenedModel files = *files::OpenModelFiles(directory);
    const ModelConfig config = *ReadModelConfig(files);
    files::OpenedModel expanded_files = *files::OpenModelFiles(directory);
    expanded_files.weights = AsFloats(*files.weights);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(directory + " " + std::string(Name(dtype)));
      CountingCudaModel packed(config, files, {.activation_dtype = dtype});
      const Logits whole = packed.runner->Prefill(golden.ids);
      if (dtype == DType::kF32) {  // not packed: float32 weights are rounded as on a CPU
        testing::ExpectAgreement(directory, golden, whole);
        continue;
      }
      CountingCudaModel expanded(config, expanded_files, {.activation_dtype = dtype});
      EXPECT_LT(packed.weight_bytes * 10, expanded.weight_bytes * 6);
      EXPECT_GT(packed.gemms.all, 0);
      EXPECT_EQ(whole, expanded.runner->Prefill(golden.ids));
      packed.gemms.all = 0;
      const Logits chunked = packed.runner->Prefill(golden.ids, 7);
      EXPECT_LT(packed.gemms.all, 12) << "the head alone, which is not packed";
      // The roundings are those that LogitsAreThoseOfExpandedWeights counts.
      const double rounding = dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
      const double roundings = 14.0 * static_cast<double>(config.num_layers()) + 4.0;
      EXPECT_LE(RelativeError(chunked, golden.logits), rounding * std::sqrt(roundings));
      EXPECT_LE(RelativeError(whole, golden.logits), rounding * std::sqrt(roundings));
    }
  }
}

TEST(CudaPackedWeightsTest, LogitsAreThoseOfExpandedWeights) {
  const std::string folder = testing::TestSourcePath("engine/model/testdata/");
  const std::string path = folder + "k_quant_goldens.json";
  const nlohmann::json cases = (*base::ParseJson(testing::ReadFile(path), path)).at("cases");
  struct Case {
    size_t golden;
    std::optional<WeightType> type;  // none: the types of the file
  };
  // The files have Q4_K and Q6_K, and Q5_K and Q6_K.
  for (const auto& [index, type] :
       {Case{0, {}}, Case{1, {}}, Case{0, WeightType::kQ4_0}, Case{0, WeightType::kQ8_0}}) {
    const testing::GoldenLogits golden = testing::ReadGoldenLogits(cases.at(index));
    const std::string file = folder + std::string(cases.at(index).at("file"));
    files::OpenedModel files = *files::OpenModelFiles(file);
    const ModelConfig config = *ReadModelConfig(files);
    if (type) files.weights = std::make_unique<RetypedWeights>(*files.weights, *type);
    files::OpenedModel expanded_files = *files::OpenModelFiles(file);
    expanded_files.weights = std::make_unique<RetypedWeights>(*files.weights, WeightType::kF32);
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(type ? kernels::Traits(*type).name : "the types of the file");
      SCOPED_TRACE(Name(dtype));
      CountingCudaModel packed(config, files, {.activation_dtype = dtype});
      CountingCudaModel expanded(config, expanded_files, {.activation_dtype = dtype});
      // Q8_0 has 8.5 bits. Norms and the table of rotary angles are not packed.
      EXPECT_LT(packed.weight_bytes * 10, expanded.weight_bytes * 6);

      // More tokens than the packed GEMM takes: its weights are dequantised to those of `expanded`,
      // as many rows at a time as fit. A product of fewer rows may add in another order.
      const Logits want = expanded.runner->Prefill(golden.ids);
      const Logits whole = packed.runner->Prefill(golden.ids);
      EXPECT_GT(packed.gemms.all, expanded.gemms.all);
      packed.gemms.all = 0;
      const Logits chunked = packed.runner->Prefill(golden.ids, 7);
      EXPECT_EQ(packed.gemms.all, 0);
      // Roundings add up as independent errors do, as in cuda_decoder_test.cc: an embedding, ten
      // activations a layer and the last norm, in either of the two runs. The weights are the same.
      const double rounding = dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
      const double activations = 10.0 * static_cast<double>(config.num_layers()) + 2.0;
      EXPECT_LE(RelativeError(whole, want), rounding * std::sqrt(2.0 * activations));
      EXPECT_LE(RelativeError(chunked, want), rounding * std::sqrt(2.0 * activations));
      EXPECT_GT(RelativeError(chunked, want), 0.0);
      if (!type) {
        const double weights = 4.0 * static_cast<double>(config.num_layers()) + 2.0;
        EXPECT_LE(RelativeError(chunked, golden.logits),
                  rounding * std::sqrt(activations + weights));
      }
    }
  }
}

// Returns a random Mixtral of 256 hidden units, as K-quants need. Each token takes all experts, so
// that a rounding changes no choice.
GoldenModel WideMixtral() {
  std::vector<GoldenModel> all = testing::ReadGoldenFamilies();
  GoldenModel golden = *std::ranges::find(all, "mixtral", &GoldenModel::name);
  constexpr int64_t kSize = 256;
  testing::InMemoryWeights weights;
  for (const files::TensorInfo& tensor : golden.weights->tensors()) {
    const auto has = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
    std::vector<int64_t> shape = tensor.shape;
    if (!has("o_proj")) shape.back() = kSize;
    if (has("o_proj") || has("experts.")) shape.front() = kSize;
    weights.AddRandom(tensor.name, shape);
  }
  golden.weights = std::make_shared<const testing::InMemoryWeights>(std::move(weights));
  golden.config.hidden_size = kSize;
  for (LayerSpec& layer : golden.config.layers) {
    layer.feed_forward.inner_size = kSize;
    layer.feed_forward.experts.per_token = layer.feed_forward.experts.count;
  }
  return golden;
}

TEST(CudaPackedWeightsTest, LogitsOfAMixtureAreThoseOfExpandedWeights) {
  const GoldenModel golden = WideMixtral();
  const ModelConfig& config = golden.config;
  for (const WeightType type : {WeightType::kQ4_K, WeightType::kQ6_K, WeightType::kQ8_0}) {
    const DType dtype = type == WeightType::kQ6_K ? DType::kF16 : DType::kBF16;
    SCOPED_TRACE(kernels::Traits(type).name);
    const RetypedWeights weights(*golden.weights, type), floats(weights, WeightType::kF32);
    const auto on = [&](const files::WeightMap& of, kernels::Backend& backend) {
      return CreateDecoder(config, of, golden.names, backend, ModelRunner::kLimits);
    };
    CountingCudaModel packed({.activation_dtype = dtype},
                             [&](auto& backend) { return on(weights, backend); });
    CountingCudaModel expanded({.activation_dtype = dtype},
                               [&](auto& backend) { return on(floats, backend); });
    EXPECT_LT(packed.weight_bytes * 10, expanded.weight_bytes * 6);

    const Logits want = expanded.runner->Prefill(golden.ids);
    const Logits whole = packed.runner->Prefill(golden.ids);
    // An expert has all 70 tokens. So many rows are expanded from Q8_0 (expert_product.cu).
    if (type == WeightType::kQ8_0) {
      EXPECT_EQ(whole, want);
    }
    // As above. A mixture has eight activations more: the hidden units and the outputs of experts.
    const double rounding = dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
    const double activations = 18.0 * static_cast<double>(config.num_layers()) + 2.0;
    const double bound = rounding * std::sqrt(2.0 * activations);
    EXPECT_LE(RelativeError(whole, want), bound);
    const Logits chunked = packed.runner->Prefill(golden.ids, 7);
    EXPECT_LE(RelativeError(chunked, want), bound);
    EXPECT_GT(RelativeError(chunked, want), 0.0);
    RecordProperty(kernels::Traits(type).name.data(),
                   std::to_string(RelativeError(chunked, want) / bound));
  }
}

}  // namespace
}  // namespace quire::engine
