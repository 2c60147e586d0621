#pragma once

// Functions that read everything that can be read from a file. The fuzzers and the random-damage
// tests call them.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/check.h"
#include "base/json.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/scaled_matrix.h"
#include "files/gguf.h"
#include "files/gguf_parts.h"
#include "files/mapped_weights.h"
#include "files/safetensors.h"

namespace quire::testing {

// Checks that every tensor is inside `file`, and reads the first and the last byte of the tensor.
inline void TouchTensors(const std::vector<files::TensorInfo>& tensors,
                         std::span<const std::byte> file) {
  for (const files::TensorInfo& tensor : tensors) {
    if (tensor.bytes.empty()) continue;
    QUIRE_CHECK(tensor.bytes.data() >= file.data() &&
                tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size())
        << tensor.name;
    volatile std::byte sink = tensor.bytes.front();
    sink = tensor.bytes.back();
    (void)sink;
  }
}

// Parses `file` and reads all its values and tensors. Returns whether the parser accepted it.
inline bool ExerciseGguf(std::span<const std::byte> file) {
  auto contents = files::ParseGguf(file, "fuzz.gguf");
  if (!contents.ok()) return false;
  const files::GgufMetadata& metadata = contents->metadata;
  for (const files::GgufValue& value : metadata.values()) {
    (void)metadata.Int(value.key);
    (void)metadata.Float(value.key);
    (void)metadata.Bool(value.key);
    (void)metadata.String(value.key);
    (void)metadata.Ints(value.key);
    (void)metadata.Floats(value.key);
    (void)metadata.Strings(value.key);
  }
  TouchTensors(contents->tensors, file);
  const auto weights = files::MappedWeights::Create({}, std::move(contents->tensors),
                                                    std::move(contents->unusable_tensors));
  QUIRE_CHECK(weights.ok()) << weights.status();
  (void)engine::ReadGgufModelConfig(metadata, **weights);
  return true;
}

// Reads `parts` as the files of one model. Returns whether all were accepted.
inline bool ExerciseGgufParts(std::span<const std::span<const std::byte>> parts) {
  const std::string name = absl::StrFormat("fuzz-00001-of-%05d.gguf", parts.size());
  auto whole = files::ParseGguf(parts[0], name);
  if (!whole.ok()) return false;
  const auto paths = files::GgufPartPaths(whole->metadata, name);
  if (!paths.ok() || paths->size() != parts.size()) return false;
  for (size_t i = 1; i < parts.size(); ++i) {
    auto part = files::ParseGguf(parts[i], (*paths)[i]);
    if (!part.ok()) return false;
    TouchTensors(part->tensors, parts[i]);
    const auto number = static_cast<int64_t>(i) + 1;
    if (!files::AddGgufPart(*std::move(part), number, *whole).ok()) return false;
  }
  if (!files::CheckGgufTensorCount(*whole).ok()) return false;
  const auto weights = files::MappedWeights::Create({}, std::move(whole->tensors),
                                                    std::move(whole->unusable_tensors));
  if (!weights.ok()) return false;  // a name in two parts
  (void)engine::ReadGgufModelConfig(whole->metadata, **weights);
  return true;
}

inline bool ExerciseSafetensors(std::span<const std::byte> file) {
  auto contents = files::ParseSafetensors(file, "fuzz.safetensors");
  if (!contents.ok()) return false;
  TouchTensors(contents->tensors, file);
  const auto weights = files::MappedWeights::Create({}, std::move(contents->tensors),
                                                    std::move(contents->unusable_tensors));
  QUIRE_CHECK(weights.ok()) << weights.status();
  for (const files::TensorInfo& tensor : (*weights)->tensors()) {
    if (tensor.type != kernels::WeightType::kF8E4M3 || tensor.shape.size() != 2) continue;
    (void)engine::WithScales(tensor.name, tensor.shape[0], tensor.shape[1], **weights);
  }
  return true;
}

// Reads `text` as the shard index of a Hugging Face directory, and then as its config.json.
inline void ExerciseJson(std::string_view text) {
  (void)files::ParseSafetensorsIndex(text, "fuzz.index.json");
  const auto config = base::ParseJson(text, "fuzz.json");
  if (!config.ok()) return;
  const auto none = files::MappedWeights::Create({}, {}, {});
  (void)engine::ReadHfModelConfig(*config, "fuzz.json", **none);
}

}  // namespace quire::testing
