#pragma once

// A WeightMap over vectors: float32 tensors given by name, no file.

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "files/weight_map.h"

namespace quire::testing {

class InMemoryWeights final : public files::WeightMap {
 public:
  void Add(std::string name, std::vector<int64_t> shape, std::vector<float> values);
  // [size] or [rows, cols], by the rule of tests/engine/model/make_goldens.py: values are a
  // function of (name, index) alone.
  void AddRandom(const std::string& name, const std::vector<int64_t>& shape);

  // Multiplies every value of a tensor that is there.
  void Scale(std::string_view name, float factor);

  const std::vector<files::TensorInfo>& tensors() const override { return tensors_; }
  const files::TensorInfo* Find(std::string_view name) const override;
  void DropPages(std::span<const std::byte>) const override {}

 private:
  std::deque<std::vector<float>> storage_;
  std::vector<files::TensorInfo> tensors_;
};

// The tensors of a Llama by the same rule.
struct TinyLlamaShape {
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
  int64_t num_attention_heads, num_key_value_heads, head_dim;
  bool tie_word_embeddings = false, attention_bias = false, mlp_bias = false;
};
// The names are Hugging Face's, or GGUF's with `gguf_naming`. With GGUF's names, the rows of Q and
// K are in interleaved rotary order.
InMemoryWeights MakeTinyLlama(const TinyLlamaShape& shape, bool gguf_naming = false);

}  // namespace quire::testing
