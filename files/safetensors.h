#pragma once

// Reads Safetensors, the file format of Hugging Face: a JSON header and raw row-major tensors.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "files/weight_map.h"

namespace quire::files {

struct SafetensorsContents {
  std::vector<TensorInfo> tensors;               // F32, F16, BF16, F8_E4M3; in file order
  std::vector<UnusableTensor> unusable_tensors;  // tensors of all other types
};

// Reads the header of a safetensors file. The result points into `bytes`. Nothing in the file is
// trusted. The header must fit the file and be one JSON object. Every tensor must have a known
// type, and exactly the bytes that its shape and type need. The tensors must fill the data section
// without a gap or an overlap, as the safetensors library demands. Returns an InvalidArgument error
// that names `file`, the field, the value that was wanted and the value that was found.
absl::StatusOr<SafetensorsContents> ParseSafetensors(std::span<const std::byte> bytes,
                                                     std::string_view file);

// The content of model.safetensors.index.json: the shard of each tensor.
struct SafetensorsIndex {
  std::map<std::string, std::string> shard_of_tensor;  // tensor name -> file name beside the index
  std::vector<std::string> Shards() const;             // the file names, each once, sorted
};

// Reads the text of an index. Returns InvalidArgument when the JSON does not have the form of an
// index, or when the name of a shard is not a plain file name that ends in ".safetensors".
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json,
                                                       std::string_view file);

}  // namespace quire::files
