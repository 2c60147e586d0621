// Tests that a mixture of experts gives the same logits, however its tensors are named and split.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/model/architectures/architecture.h"
#include "engine/model/decoder.h"
#include "kernels/backend_registry.h"
#include "tests/engine/model/golden_models.h"

namespace quire::engine {
namespace {

using testing::GoldenModel;
using testing::GoldenRunner;
using testing::InMemoryWeights;
using testing::Logits;

GoldenModel Mixtral() {
  std::vector<GoldenModel> all = testing::ReadGoldenFamilies();
  return *std::ranges::find(all, "mixtral", &GoldenModel::name);
}

std::vector<float> ValuesOf(const InMemoryWeights& weights, const std::string& name) {
  const files::TensorInfo* tensor = weights.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  const auto* begin = reinterpret_cast<const float*>(tensor->bytes.data());
  return {begin, begin + tensor->bytes.size() / sizeof(float)};
}

constexpr char kExperts[] = "block_sparse_moe.experts.";

// Returns one matrix of an expert. `part` is w1 (the gate), w2 (down) or w3 (up).
std::vector<float> Expert(const InMemoryWeights& weights, int64_t layer, int64_t expert,
                          const char* part) {
  return ValuesOf(
      weights, absl::StrCat("model.layers.", layer, ".", kExperts, expert, ".", part, ".weight"));
}

// Returns all tensors except those of the mixtures of experts. `rename` maps an old name to a new
// one.
template <typename Rename>
InMemoryWeights WithoutMixtures(const GoldenModel& golden, Rename rename) {
  InMemoryWeights rest;
  for (const files::TensorInfo& tensor : golden.weights->tensors()) {
    if (tensor.name.find("block_sparse_moe") != std::string::npos) continue;
    rest.Add(rename(tensor.name), tensor.shape, ValuesOf(*golden.weights, tensor.name));
  }
  return rest;
}

Logits LogitsOf(GoldenModel golden, InMemoryWeights weights) {
  golden.weights = std::make_shared<const InMemoryWeights>(std::move(weights));
  GoldenRunner runner(golden, *kernels::CreateBackend({.name = "cpu", .num_threads = 2}));
  return runner->Prefill(golden.ids);
}

// In memory, transformers 5 has one tensor with the gates and up projections of all experts, and
// one tensor with their down projections. The rows of each expert's gate come before the rows of
// its up projection.
TEST(MixtureTest, FusedExpertsAreTheSameModel) {
  const GoldenModel golden = Mixtral();
  const ModelConfig& config = golden.config;
  const int64_t hidden = config.hidden_size, inner = config.layers[0].feed_forward.inner_size;
  InMemoryWeights weights = WithoutMixtures(golden, [](const std::string& name) { return name; });
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    std::vector<float> up, down;
    for (int64_t e = 0; e < config.layers[0].feed_forward.experts.count; ++e) {
      for (const char* part : {"w1", "w3", "w2"}) {
        const std::vector<float> values = Expert(*golden.weights, i, e, part);
        std::vector<float>& to = part[1] == '2' ? down : up;
        to.insert(to.end(), values.begin(), values.end());
      }
    }
    weights.Add(layer + "mlp.gate.weight", {config.layers[0].feed_forward.experts.count, hidden},
                ValuesOf(*golden.weights, layer + "block_sparse_moe.gate.weight"));
    weights.Add(layer + "mlp.experts.gate_up_proj",
                {config.layers[0].feed_forward.experts.count, 2 * inner, hidden}, up);
    weights.Add(layer + "mlp.experts.down_proj",
                {config.layers[0].feed_forward.experts.count, hidden, inner}, down);
  }
  EXPECT_EQ(LogitsOf(golden, std::move(weights)), LogitsOf(golden, *golden.weights));
}

std::string GgufName(std::string name) {
  const std::pair<const char*, const char*> kParts[] = {
      {"model.layers.", "blk."},        {"model.embed_tokens", "token_embd"},
      {"model.norm", "output_norm"},    {"lm_head", "output"},
      {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.q_proj", "attn_q"},   {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},   {"self_attn.o_proj", "attn_output"}};
  for (const auto& [from, to] : kParts) {
    const size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, std::string(from).size(), to);
  }
  return name;
}

TEST(MixtureTest, GgufsExpertsMergedAndSplitAreTheSameModel) {
  GoldenModel golden = Mixtral();
  const Logits want = LogitsOf(golden, *golden.weights);
  golden.names = kLlama.gguf_names(golden.config.layers[0]);
  const ModelConfig& config = golden.config;
  const int64_t hidden = config.hidden_size, inner = config.layers[0].feed_forward.inner_size;
  for (const bool merged : {true, false}) {
    InMemoryWeights weights = WithoutMixtures(golden, GgufName);
    for (int64_t i = 0; i < config.num_layers(); ++i) {
      const std::string layer = absl::StrCat("blk.", i, ".");
      weights.Add(layer + "ffn_gate_inp.weight",
                  {config.layers[0].feed_forward.experts.count, hidden},
                  ValuesOf(*golden.weights,
                           absl::StrCat("model.layers.", i, ".block_sparse_moe.gate.weight")));
      for (const auto& [part, name] :
           {std::pair("w1", "ffn_gate"), std::pair("w3", "ffn_up"), std::pair("w2", "ffn_down")}) {
        const int64_t rows = part[1] == '2' ? hidden : inner,
                      cols = part[1] == '2' ? inner : hidden;
        std::vector<float> all;
        for (int64_t e = 0; e < config.layers[0].feed_forward.experts.count; ++e) {
          const std::vector<float> values = Expert(*golden.weights, i, e, part);
          all.insert(all.end(), values.begin(), values.end());
          if (!merged)
            weights.Add(absl::StrCat(layer, name, ".", e, ".weight"), {rows, cols}, values);
        }
        if (merged) {
          weights.Add(absl::StrCat(layer, name, "_exps.weight"),
                      {config.layers[0].feed_forward.experts.count, rows, cols}, all);
        }
      }
    }
    EXPECT_EQ(LogitsOf(golden, std::move(weights)), want) << (merged ? "merged" : "split");
  }
}

absl::Status Load(const GoldenModel& golden, const files::WeightMap& weights) {
  const auto backend = *kernels::CreateBackend({.name = "cpu"});
  return CreateDecoder(golden.config, weights, golden.names, *backend,
                       testing::ModelRunner::kLimits)
      .status();
}

TEST(MixtureTest, NamesTheExpertThatIsMissingOrLeftOver) {
  GoldenModel golden = Mixtral();
  EXPECT_TRUE(Load(golden, *golden.weights).ok());
  InMemoryWeights without;
  const std::string missing = "model.layers.1.block_sparse_moe.experts.2.w2.weight";
  for (const files::TensorInfo& tensor : golden.weights->tensors()) {
    if (tensor.name == missing) continue;
    without.Add(tensor.name, tensor.shape, ValuesOf(*golden.weights, tensor.name));
  }
  EXPECT_THAT(std::string(Load(golden, without).message()), ::testing::HasSubstr(missing));

  InMemoryWeights more = *golden.weights;
  more.AddRandom("model.layers.0.block_sparse_moe.experts.4.w1.weight", {80, 64});
  EXPECT_THAT(std::string(Load(golden, more).message()),
              ::testing::HasSubstr("model.layers.0.block_sparse_moe.experts.4.w1.weight"));

  golden.config.layers[0].feed_forward.experts.count = 3;
  EXPECT_THAT(std::string(Load(golden, *golden.weights).message()),
              ::testing::HasSubstr("block_sparse_moe.gate.weight: want [3, 64], got [4, 64]"));
}

}  // namespace
}  // namespace quire::engine
