#include "files/model_digest.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "kernels/quant/weight_view.h"

namespace quire::files {
namespace {

// Bytes that count of one tensor, and of all of them. SHA-256 of 16 MiB takes 10 ms on one core of
// an AMD EPYC.
constexpr size_t kMostSampleBytes = 4096;
constexpr size_t kMostBytes = 16 << 20;

std::span<const std::byte> Middle(std::span<const std::byte> bytes, size_t most) {
  const size_t size = std::min(bytes.size(), most);
  return bytes.subspan((bytes.size() - size) / 2, size);
}

void AddShape(base::Sha256& sha, const std::vector<int64_t>& shape) {
  sha.AddInt(std::ssize(shape));
  for (const int64_t size : shape) sha.AddInt(size);
}

void AddMetadata(base::Sha256& sha, const GgufMetadata& metadata) {
  sha.AddInt(std::ssize(metadata.values()));
  for (const GgufValue& value : metadata.values()) {
    sha.AddSized(value.key);
    sha.AddInt(static_cast<int64_t>(value.type));
    sha.AddInt(static_cast<int64_t>(value.element_type));
    sha.AddInt(value.count);
    sha.AddInt(std::ssize(value.bytes));
    sha.Add(value.bytes);
  }
}

void AddDirectory(base::Sha256& sha, const HfFiles& files) {
  // A parsed object has its members in the order of their names.
  for (const nlohmann::json* json :
       {&files.config, &files.generation_config, &files.tokenizer_config}) {
    sha.AddSized(json->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  sha.AddSized(files.tokenizer_json);
}

void AddTensors(base::Sha256& sha, const WeightMap& weights) {
  std::vector<const TensorInfo*> tensors;
  for (const TensorInfo& tensor : weights.tensors()) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, &TensorInfo::name);
  sha.AddInt(std::ssize(tensors));
  const size_t most = std::min(kMostSampleBytes, kMostBytes / std::max(tensors.size(), size_t{1}));
  for (const TensorInfo* tensor : tensors) {
    sha.AddSized(tensor->name);
    sha.AddSized(kernels::Traits(tensor->type).name);
    AddShape(sha, tensor->shape);
    sha.AddInt(std::ssize(tensor->bytes));
    sha.Add(Middle(tensor->bytes, most));
  }
}

}  // namespace

std::string ModelDigest(const OpenedModel& model) {
  base::Sha256 sha;
  sha.AddSized(model.format());
  if (model.gguf) AddMetadata(sha, *model.gguf);
  if (model.hf) AddDirectory(sha, *model.hf);
  sha.AddSized(model.chat_template_jinja);
  AddTensors(sha, *model.weights);
  return base::ToHex(sha.Finish());
}

}  // namespace quire::files
