#pragma once

// Reads the metadata keys of one architecture in a GGUF file. For instance, the name "block_count"
// reads the key "gemma3.block_count". If the key is absent, the result is the fallback. A key
// without a fallback is required. Errors are InvalidArgument and name the file and the key.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "files/gguf_metadata.h"
#include "files/weight_map.h"

namespace quire::engine {

class GgufFields {
 public:
  // Borrows `metadata` and `weights`.
  GgufFields(const files::GgufMetadata& metadata, const files::WeightMap& weights,
             std::string_view architecture)
      : metadata_(metadata), weights_(weights), architecture_(architecture) {}

  const files::GgufMetadata& metadata() const { return metadata_; }
  const files::WeightMap& weights() const { return weights_; }
  bool HasTensor(std::string_view name) const { return weights_.Find(name) != nullptr; }
  bool Has(std::string_view name) const { return metadata_.Has(Key(name)); }
  absl::Status Error(std::string_view name, std::string_view wanted_and_got) const;

  // CheckTheRest accepts every key that one of the following functions has read.
  absl::Status Int(std::string_view name, std::optional<int64_t> fallback, int64_t& out);
  // Reads a number for all layers, or an array with one number for each of `num_layers` layers. The
  // result has one element if all layers have the same number.
  absl::Status IntsOfLayers(std::string_view name, std::optional<int64_t> fallback,
                            int64_t num_layers, std::vector<int64_t>& out);
  absl::Status Float(std::string_view name, std::optional<double> fallback, double& out);
  // Reads an array with one number for each of `num_layers` layers. The result is empty if the key
  // is absent.
  absl::Status FloatsOfLayers(std::string_view name, int64_t num_layers, std::vector<double>& out);
  absl::Status Bool(std::string_view name, bool fallback, bool& out);
  absl::Status String(std::string_view name, std::string_view fallback, std::string& out);

  // Refuses a file with a key that was not read, since the feature of this key would be left out.
  // Accepts keys that are known to change no answer, and keys whose value turns their feature off.
  absl::Status CheckTheRest() const;

 private:
  std::string Key(std::string_view name) const;
  std::string Read(std::string_view name);
  absl::Status WrongCount(std::string_view name, int64_t num_layers, size_t got) const;

  const files::GgufMetadata& metadata_;
  const files::WeightMap& weights_;
  const std::string architecture_;
  std::set<std::string, std::less<>> read_;  // the keys that were read
};

}  // namespace quire::engine
