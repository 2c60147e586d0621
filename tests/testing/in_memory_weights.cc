#include "tests/testing/in_memory_weights.h"

#include <cmath>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "engine/model/decoder_tensors.h"
#include "kernels/quant/quantize.h"

namespace quire::testing {
namespace {

// Returns multiples of 2^-15, uniform in [-1, 1), from splitmix64 seeded with the FNV-1a hash of
// `name`.
std::vector<double> TensorValues(std::string_view name, int64_t size) {
  uint64_t state = 0xCBF29CE484222325;
  for (const char byte : name) {
    state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  }
  std::vector<double> values(size);
  for (double& value : values) {
    state += 0x9E3779B97F4A7C15;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    value = static_cast<double>(z >> 48) / 32768.0 - 1.0;
  }
  return values;
}

// Returns the values of a tensor, made from TensorValues. The values of norms are scaled to be near
// 1. Matrices are scaled to have a gain of about 1. Biases and the embedding are not scaled.
std::vector<float> Fill(std::string_view name, int64_t rows, int64_t cols) {
  std::vector<double> values = TensorValues(name, rows * cols);
  const bool matrix = rows > 1;
  const bool norm =
      name.find("norm") != std::string_view::npos || name.find("_ln") != std::string_view::npos;
  const double gain =
      static_cast<double>(static_cast<float>(2.5 / std::sqrt(static_cast<double>(cols))));
  std::vector<float> filled;
  filled.reserve(values.size());
  for (double value : values) {
    if (norm) {
      value = 1.0 + 0.25 * value;
    } else if (matrix && name.find("embed_tokens") == std::string_view::npos) {
      value *= gain;
    }
    filled.push_back(static_cast<float>(value));
  }
  return filled;
}

// Returns `values` with the rows of each head in another order. Rows i and i + head_dim / 2, which
// form a rotary pair, become rows 2i and 2i + 1.
std::vector<float> InterleaveRows(const std::vector<float>& values, int64_t rows, int64_t cols,
                                  int64_t head_dim) {
  std::vector<float> out(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / head_dim, i = row % head_dim;
    const int64_t to = head * head_dim + (i < head_dim / 2 ? 2 * i : 2 * (i - head_dim / 2) + 1);
    std::copy_n(values.begin() + row * cols, cols, out.begin() + to * cols);
  }
  return out;
}

}  // namespace

void InMemoryWeights::Add(std::string name, std::vector<int64_t> shape, std::vector<float> values) {
  storage_.push_back(std::move(values));
  mutable_tensors().push_back({.name = std::move(name),
                               .type = kernels::WeightType::kF32,
                               .shape = std::move(shape),
                               .bytes = std::as_bytes(std::span(storage_.back()))});
}

void InMemoryWeights::AddRandom(const std::string& name, const std::vector<int64_t>& shape) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  Add(name, shape, Fill(name, rows, shape.back()));
}

void InMemoryWeights::Scale(std::string_view name, float factor) {
  for (size_t i = 0; i < tensors().size(); ++i) {
    if (tensors()[i].name != name) continue;
    for (float& value : storage_[i]) value *= factor;
  }
}

void InMemoryWeights::Quantize(kernels::WeightType type) {
  const kernels::WeightTypeTraits& traits = kernels::Traits(type);
  for (size_t i = 0; i < tensors().size(); ++i) {
    files::TensorInfo& tensor = mutable_tensors()[i];
    const int64_t cols = tensor.shape.back();
    if (tensor.shape.size() < 2 || cols % traits.block_elements != 0) continue;
    const auto num_blocks = std::ssize(storage_[i]) / traits.block_elements;
    std::vector<std::byte>& bytes =
        quantized_.emplace_back(static_cast<size_t>(num_blocks * traits.block_bytes));
    QUIRE_CHECK(kernels::Quantize(type, storage_[i], cols, bytes).ok());
    tensor.type = type;
    tensor.bytes = bytes;
  }
}

std::vector<engine::LayerSpec> LayersOf(const TinyLlamaShape& shape,
                                        std::span<const kernels::AttentionPattern> patterns) {
  const engine::LayerSpec layer = {
      .attention = {.num_heads = shape.num_attention_heads,
                    .num_kv_heads = shape.num_key_value_heads,
                    .key_dim = shape.head_dim,
                    .value_dim = shape.head_dim,
                    .bias = shape.attention_bias},
      .feed_forward = {.inner_size = shape.intermediate_size, .bias = shape.mlp_bias}};
  std::vector<engine::LayerSpec> layers(static_cast<size_t>(shape.num_hidden_layers), layer);
  for (size_t i = 0; i < patterns.size(); ++i) layers[i].attention.pattern = patterns[i];
  return layers;
}

InMemoryWeights MakeTinyLlama(const TinyLlamaShape& shape, bool gguf_naming) {
  InMemoryWeights weights;
  const int64_t hidden = shape.hidden_size;
  const int64_t q = shape.num_attention_heads * shape.head_dim;
  const int64_t kv = shape.num_key_value_heads * shape.head_dim;
  const auto matrix = [&](const std::string& name, const std::string& gguf_name, int64_t rows,
                          int64_t cols, bool rotary = false) {
    std::vector<float> values = Fill(name, rows, cols);
    if (gguf_naming && rotary) values = InterleaveRows(values, rows, cols, shape.head_dim);
    weights.Add(gguf_naming ? gguf_name : name, {rows, cols}, std::move(values));
  };
  const auto vector = [&](const std::string& name, const std::string& gguf_name, int64_t size,
                          bool rotary = false) {
    std::vector<float> values = Fill(name, 1, size);
    if (gguf_naming && rotary) values = InterleaveRows(values, size, 1, shape.head_dim);
    weights.Add(gguf_naming ? gguf_name : name, {size}, std::move(values));
  };

  matrix("model.embed_tokens.weight", "token_embd.weight", shape.vocab_size, hidden);
  for (int64_t i = 0; i < shape.num_hidden_layers; ++i) {
    const std::string hf = absl::StrCat("model.layers.", i, "."),
                      gguf = absl::StrCat("blk.", i, ".");
    vector(hf + "input_layernorm.weight", gguf + "attn_norm.weight", hidden);
    vector(hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight", hidden);
    const struct {
      const char *hf, *gguf;
      int64_t rows, cols;
      bool rotary, bias;
    } projections[] = {
        {"self_attn.q_proj", "attn_q", q, hidden, true, shape.attention_bias},
        {"self_attn.k_proj", "attn_k", kv, hidden, true, shape.attention_bias},
        {"self_attn.v_proj", "attn_v", kv, hidden, false, shape.attention_bias},
        {"self_attn.o_proj", "attn_output", hidden, q, false, shape.attention_bias},
        {"mlp.gate_proj", "ffn_gate", shape.intermediate_size, hidden, false, shape.mlp_bias},
        {"mlp.up_proj", "ffn_up", shape.intermediate_size, hidden, false, shape.mlp_bias},
        {"mlp.down_proj", "ffn_down", hidden, shape.intermediate_size, false, shape.mlp_bias},
    };
    for (const auto& p : projections) {
      matrix(hf + p.hf + ".weight", gguf + p.gguf + ".weight", p.rows, p.cols, p.rotary);
      if (p.bias) vector(hf + p.hf + ".bias", gguf + p.gguf + ".bias", p.rows, p.rotary);
    }
  }
  vector("model.norm.weight", "output_norm.weight", hidden);
  if (!shape.tie_word_embeddings)
    matrix("lm_head.weight", "output.weight", shape.vocab_size, hidden);
  return weights;
}

InMemoryWeights MakeRandomWeights(const engine::ModelConfig& config,
                                  const engine::TensorNames& names) {
  const engine::DecoderTensors tensors =
      engine::FindTensors(config, names, [](std::string_view) { return true; });
  InMemoryWeights weights;
  for (const engine::StoredParameter* parameter : engine::AllParameters(tensors)) {
    for (const engine::NamedRows& part : parameter->parts) {
      weights.AddRandom(part.name, engine::ShapeOf(part, parameter->cols));
    }
  }
  return weights;
}

}  // namespace quire::testing
