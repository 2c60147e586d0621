#pragma once

// A WeightMap of tensors in memory, float32 unless they are quantised. A test adds each tensor by
// name.

#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/model/tensor_names.h"
#include "files/weight_map.h"
#include "kernels/ops/attention_pattern.h"

namespace quire::testing {

class InMemoryWeights final : public files::TensorList {
 public:
  void Add(std::string name, std::vector<int64_t> shape, std::vector<float> values);
  // Adds a tensor of shape [size], [rows, cols] or with more dimensions. The random values follow
  // the rule of tests/engine/model/make_goldens.py. A value depends only on the name and the shape
  // of the tensor and on the index of the value.
  void AddRandom(const std::string& name, const std::vector<int64_t>& shape);

  // Multiplies every value of the tensor `name` by `factor`. Does nothing if there is no such
  // tensor.
  void Scale(std::string_view name, float factor);
  // Stores every matrix whose rows are whole blocks of `type` in this type, which kernels::Quantize
  // must be able to write.
  void Quantize(kernels::WeightType type);

 private:
  std::deque<std::vector<float>> storage_;
  std::deque<std::vector<std::byte>> quantized_;
};

// The shape of a Llama that MakeTinyLlama makes.
struct TinyLlamaShape {
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
  int64_t num_attention_heads, num_key_value_heads, head_dim;
  bool tie_word_embeddings = false, attention_bias = false, mlp_bias = false;
};
// Returns the layers of the Llama that `shape` describes. `patterns` has the attention pattern of
// each layer; if empty, every query sees all keys up to its own.
std::vector<engine::LayerSpec> LayersOf(const TinyLlamaShape& shape,
                                        std::span<const kernels::AttentionPattern> patterns = {});
// Returns the tensors of a Llama. Their values follow the rule of InMemoryWeights::AddRandom. Their
// names are those of Hugging Face, or of GGUF if `gguf_naming`. With GGUF names, the rows of Q and
// K are in interleaved rotary order.
InMemoryWeights MakeTinyLlama(const TinyLlamaShape& shape, bool gguf_naming = false);
// Returns a model's tensors, whose values follow InMemoryWeights::AddRandom's rule.
InMemoryWeights MakeRandomWeights(const engine::ModelConfig& config,
                                  const engine::TensorNames& names);

}  // namespace quire::testing
