#pragma once

// Functions that read everything that can be read from a file. The fuzzers and the random-damage
// tests call them.

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/scaled_matrix.h"
#include "files/gguf.h"
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
