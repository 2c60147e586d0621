// Tests the scales of an fp8 KV cache: what a checkpoint says, and what a model makes of it.

#include "engine/model/cache_scales.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "files/model_files.h"
#include "kernels/backend_registry.h"
#include "tests/engine/model/scaled_cache_model.h"
#include "tests/testing/edited_weights.h"
#include "tests/testing/in_memory_weights.h"

namespace quire::engine {
namespace {

using kernels::CacheScales;
using kernels::DType;
using testing::EditedWeights;
using ::testing::HasSubstr;
using testing::Logits;
using testing::ScaledCacheModel;

constexpr testing::TinyLlamaShape kTwoLayers = {.vocab_size = 16,
                                                .hidden_size = 32,
                                                .intermediate_size = 32,
                                                .num_hidden_layers = 2,
                                                .num_attention_heads = 2,
                                                .num_key_value_heads = 1,
                                                .head_dim = 16};

// A Llama of two layers, with the scales that a test adds.
class TwoLayers {
 public:
  TwoLayers() : base_(testing::MakeTinyLlama(kTwoLayers)) {
    auto edited = std::make_unique<EditedWeights>(base_);
    weights_ = edited.get();
    model_.path = "dir";
    model_.hf.emplace();
    model_.weights = std::move(edited);
  }

  EditedWeights& weights() { return *weights_; }
  files::OpenedModel& model() { return model_; }
  void Add(const std::string& name, float value, std::vector<int64_t> shape = {1}) {
    const std::vector<float> values(static_cast<size_t>(files::NumElements(shape)), value);
    weights_->Set("model.layers." + name, std::move(shape), values);
  }
  // Returns the scales of both layers, or an error.
  absl::StatusOr<std::vector<CacheScales>> Read() const {
    ModelConfig config = {.architecture = "llama", .layers = testing::LayersOf(kTwoLayers)};
    const absl::Status status = ReadCacheScales(model_, config);
    if (!status.ok()) return status;
    return std::vector<CacheScales>{config.layers[0].attention.cache_scales,
                                    config.layers[1].attention.cache_scales};
  }
  std::string ErrorOf() const {
    const auto scales = Read();
    return scales.ok() ? "" : std::string(scales.status().message());
  }

 private:
  const testing::InMemoryWeights base_;
  EditedWeights* weights_;  // model_.weights
  files::OpenedModel model_;
};

TEST(CacheScalesTest, EverySpellingIsRead) {
  struct Spelling {
    std::string k, v;
  };
  for (const Spelling& names :
       {Spelling{"k_scale", "v_scale"}, Spelling{"attn.k_scale", "attn.v_scale"},
        Spelling{"k_proj.k_scale", "v_proj.v_scale"},
        Spelling{"k_proj.output_scale", "v_proj.output_scale"}}) {
    SCOPED_TRACE(names.k);
    TwoLayers layers;
    layers.Add("1.self_attn." + names.k, 0.3f, {});
    layers.Add("1.self_attn." + names.v, 7.0f, {1, 1});
    const auto scales = layers.Read();
    ASSERT_TRUE(scales.ok()) << scales.status();
    EXPECT_EQ((*scales)[0], CacheScales());  // a layer without scales
    EXPECT_EQ((*scales)[1], (CacheScales{.k = 0.3f, .v = 7.0f}));
  }
  TwoLayers both;
  both.Add("0.self_attn.kv_scale", 0.5f);
  EXPECT_EQ((*both.Read())[0], (CacheScales{.k = 0.5f, .v = 0.5f}));
  // The scale of a projection's output is none of the cache.
  TwoLayers others;
  others.Add("0.self_attn.o_proj.output_scale", 0.5f);
  EXPECT_EQ((*others.Read())[0], CacheScales());
}

TEST(CacheScalesTest, ScalesMayHave16Bits) {
  static const uint16_t bf16[] = {0x3e80}, f16[] = {0x3800};  // 0.25 and 0.5
  TwoLayers layers;
  layers.weights().Add({"model.layers.0.self_attn.k_scale",
                        kernels::WeightType::kBF16,
                        {},
                        std::as_bytes(std::span(bf16))});
  layers.weights().Add({"model.layers.0.self_attn.v_scale",
                        kernels::WeightType::kF16,
                        {1},
                        std::as_bytes(std::span(f16))});
  EXPECT_EQ((*layers.Read())[0], (CacheScales{.k = 0.25f, .v = 0.5f}));
}

TEST(CacheScalesTest, ScalesInRangeToItsEndsAndNoOthers) {
  using Limits = std::numeric_limits<float>;
  for (const float good : {CacheScales::kSmallest, CacheScales::kLargest}) {
    TwoLayers layers;
    layers.Add("0.self_attn.kv_scale", good);
    EXPECT_EQ((*layers.Read())[0], (CacheScales{.k = good, .v = good}));
  }
  for (const float bad :
       {0.0f, -0.0f, -1.0f, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
        Limits::denorm_min(), std::nextafter(CacheScales::kSmallest, 0.0f),
        std::nextafter(CacheScales::kLargest, Limits::max())}) {
    for (const std::string name : {"k_scale", "v_scale"}) {
      TwoLayers layers;
      layers.Add("1.self_attn.k_scale", 1.0f);
      layers.Add("1.self_attn.v_scale", 1.0f);
      layers.Add("1.self_attn." + name, bad);
      EXPECT_THAT(layers.ErrorOf(), HasSubstr("dir: tensor model.layers.1.self_attn." + name +
                                              ": want a scale from "))
          << bad;
    }
  }
}

TEST(CacheScalesTest, HostileFilesAreRefusedByName) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2}, {0}, {1, 2}, {int64_t{1} << 16}}) {
    TwoLayers layers;
    layers.Add("0.self_attn.k_scale", 1.0f, shape);
    EXPECT_EQ(layers.ErrorOf(),
              "dir: tensor model.layers.0.self_attn.k_scale: want one scale for a layer, got " +
                  files::ShapeToString(shape));
  }
  TwoLayers only_k;
  only_k.Add("0.self_attn.k_scale", 1.0f);
  EXPECT_EQ(only_k.ErrorOf(),
            "dir: tensor model.layers.0.self_attn.k_scale: want a scale of the layer's values too, "
            "got none");
  TwoLayers only_v;
  only_v.Add("1.self_attn.v_proj.v_scale", 1.0f);
  EXPECT_THAT(only_v.ErrorOf(), HasSubstr("v_scale: want a scale of the layer's keys too"));
  TwoLayers twice;
  twice.Add("0.self_attn.kv_scale", 1.0f);
  twice.Add("0.self_attn.attn.v_scale", 1.0f);
  EXPECT_EQ(twice.ErrorOf(),
            "dir: tensor model.layers.0.self_attn.attn.v_scale: want one such scale for a layer, "
            "got model.layers.0.self_attn.kv_scale too");
  for (const char* name : {"2.self_attn.k_scale", "0.mlp.k_scale", "x.self_attn.v_scale"}) {
    TwoLayers nowhere;
    nowhere.Add(name, 1.0f);
    EXPECT_THAT(nowhere.ErrorOf(),
                HasSubstr(std::string("dir: tensor model.layers.") + name +
                          ": want a scale of the keys or the values of a layer"));
  }
  TwoLayers codes;
  static const std::byte code[] = {std::byte{0x38}};
  codes.weights().Add({"model.layers.0.self_attn.k_scale", kernels::WeightType::kF8E4M3, {}, code});
  EXPECT_THAT(codes.ErrorOf(), HasSubstr("k_scale: want a scale in F32, F16 or BF16, got F8_E4M3"));
}

std::unique_ptr<kernels::Backend> Cpu(const char* isa = "auto") {
  auto backend = kernels::CreateBackend({.name = "cpu", .cpu_isa = isa, .num_threads = 2});
  return backend.ok() ? *std::move(backend) : nullptr;
}

TEST(ScaledCacheTest, LogitsAgreeWithFloat64OnEveryPathWholeAndInChunks) {
  const ScaledCacheModel model;
  int runs = 0;
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    const auto backend = Cpu(isa);
    if (backend == nullptr) continue;  // this machine has no such ISA
    for (const int64_t chunk : {70, 7}) {
      testing::ExpectAgreement(isa, model.golden(), model.Run(*backend, DType::kF8E4M3, chunk));
      ++runs;
    }
  }
  EXPECT_GE(runs, 2);
}

TEST(ScaledCacheTest, OtherScalesGiveOtherLogits) {
  ScaledCacheModel model;
  const CacheScales scales = model.scales();
  const auto backend = Cpu();
  for (const auto& [k, v] : {std::pair(1.5f, 1.0f), {1.0f, 1.5f}}) {
    model.SetScales({.k = scales.k * k, .v = scales.v * v});
    const double error = testing::RelativeError(model.Run(*backend, DType::kF8E4M3),  //
                                                model.golden().logits);
    EXPECT_GT(error, 1e-3) << k << " " << v;
    EXPECT_LT(error, 0.1) << k << " " << v;  // the same model, rounded otherwise
  }
}

// All factors are powers of two, so the larger model has the logits of the smaller, to the bit.
TEST(ScaledCacheTest, ValuesBeyond448AreRightWithTheirScale) {
  constexpr float kFactor = 4096.0f;
  ScaledCacheModel model;
  const CacheScales scales = model.scales();
  const auto backend = Cpu();
  const Logits want = model.Run(*backend, DType::kF8E4M3);
  model.Enlarge(kFactor);
  model.SetScales({.k = scales.k * kFactor, .v = scales.v * kFactor});
  EXPECT_EQ(model.Run(*backend, DType::kF8E4M3), want);
  model.SetScales({});  // most elements saturate
  EXPECT_GT(testing::RelativeError(model.Run(*backend, DType::kF8E4M3), want), 0.1);
}

TEST(ScaledCacheTest, OtherCachesIgnoreTheScales) {
  ScaledCacheModel model;
  const auto backend = Cpu();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    model.SetScales({});
    const Logits want = model.Run(*backend, dtype);
    model.SetScales(model.scales());
    EXPECT_EQ(model.Run(*backend, dtype), want) << kernels::Name(dtype);
  }
}

}  // namespace
}  // namespace quire::engine
