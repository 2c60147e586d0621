#pragma once

// Writes GGUF files field by field. A test can override fields to make a wrong file.

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/gguf_metadata.h"

namespace quire::testing {

// Returns the bytes of a number, as a GGUF file holds it.
template <typename T>
std::string Raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
inline std::string RawString(std::string_view text) {
  return Raw<uint64_t>(text.size()) + std::string(text);
}

struct GgufTensorSpec {
  std::string name;
  // The number of the type in ggml. 0 is F32.
  uint32_t type = 0;
  std::vector<uint64_t> dims;  // innermost first, as in the file
  std::string data;
  std::optional<uint64_t> offset;    // absent: after the previous tensor
  std::optional<uint32_t> num_dims;  // absent: dims.size()
};

class GgufWriter {
 public:
  // Values that Build() writes into the header, and the alignment of the tensors' data. For an
  // absent count, Build() writes the true count.
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> value_count;
  uint64_t alignment = 32;

  // Adds a value of any type, given as raw bytes.
  GgufWriter& Add(std::string_view key, uint32_t type, const std::string& raw) {
    values_.push_back(RawString(key) + Raw(type) + raw);
    return *this;
  }
  GgufWriter& Add(std::string_view key, files::GgufType type, const std::string& raw) {
    return Add(key, static_cast<uint32_t>(type), raw);
  }
  GgufWriter& U32(std::string_view key, uint32_t value) {
    return Add(key, files::GgufType::kUint32, Raw(value));
  }
  GgufWriter& F32(std::string_view key, float value) {
    return Add(key, files::GgufType::kFloat32, Raw(value));
  }
  GgufWriter& Bool(std::string_view key, bool value) {
    return Add(key, files::GgufType::kBool, Raw<uint8_t>(value ? 1 : 0));
  }
  GgufWriter& String(std::string_view key, std::string_view value) {
    return Add(key, files::GgufType::kString, RawString(value));
  }
  GgufWriter& Strings(std::string_view key, const std::vector<std::string>& values) {
    std::string raw =
        Raw(static_cast<uint32_t>(files::GgufType::kString)) + Raw<uint64_t>(values.size());
    for (const std::string& value : values) raw += RawString(value);
    return Add(key, files::GgufType::kArray, raw);
  }
  template <typename T>
  GgufWriter& Array(std::string_view key, files::GgufType element_type,
                    const std::vector<T>& values) {
    std::string raw = Raw(static_cast<uint32_t>(element_type)) + Raw<uint64_t>(values.size());
    for (const T& value : values) raw += Raw(value);
    return Add(key, files::GgufType::kArray, raw);
  }
  GgufWriter& Tensor(GgufTensorSpec tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  // Adds an F32 tensor of zeros. `shape` has the outermost dimension first.
  GgufWriter& Zeros(std::string_view name, std::vector<uint64_t> shape) {
    uint64_t elements = 1;
    for (const uint64_t dim : shape) elements *= dim;
    return Tensor({.name = std::string(name),
                   .dims = {shape.rbegin(), shape.rend()},
                   .data = std::string(elements * 4, '\0')});
  }

  std::string Build() const {
    std::string file = magic + Raw(version) +
                       Raw<uint64_t>(tensor_count.value_or(tensors_.size())) +
                       Raw<uint64_t>(value_count.value_or(values_.size()));
    for (const std::string& value : values_) file += value;
    std::string data;
    for (const GgufTensorSpec& tensor : tensors_) {
      data.resize((data.size() + alignment - 1) / alignment * alignment);
      file += RawString(tensor.name) +
              Raw(tensor.num_dims.value_or(static_cast<uint32_t>(tensor.dims.size())));
      for (const uint64_t dim : tensor.dims) file += Raw(dim);
      file += Raw(tensor.type) + Raw<uint64_t>(tensor.offset.value_or(data.size()));
      data += tensor.data;
    }
    if (!tensors_.empty()) file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data;
  }

 private:
  std::vector<std::string> values_;
  std::vector<GgufTensorSpec> tensors_;
};

// Returns a complete little Llama: hidden size 16, two heads of 8, one KV head, two layers, five
// tokens.
inline GgufWriter TinyLlamaGguf() {
  GgufWriter file;
  file.String("general.architecture", "llama").String("general.name", "tiny");
  file.U32("llama.block_count", 2)
      .U32("llama.embedding_length", 16)
      .U32("llama.feed_forward_length", 24);
  file.U32("llama.attention.head_count", 2).U32("llama.attention.head_count_kv", 1);
  file.U32("llama.context_length", 64).F32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  file.Strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "a", "b"});
  file.Zeros("token_embd.weight", {5, 16}).Zeros("output_norm.weight", {16});
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    file.Zeros(layer + "attn_norm.weight", {16}).Zeros(layer + "ffn_norm.weight", {16});
    file.Zeros(layer + "attn_q.weight", {16, 16}).Zeros(layer + "attn_output.weight", {16, 16});
    file.Zeros(layer + "attn_k.weight", {8, 16}).Zeros(layer + "attn_v.weight", {8, 16});
    file.Zeros(layer + "ffn_gate.weight", {24, 16}).Zeros(layer + "ffn_up.weight", {24, 16});
    file.Zeros(layer + "ffn_down.weight", {16, 24});
  }
  return file;
}

}  // namespace quire::testing
