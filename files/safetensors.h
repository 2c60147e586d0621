#pragma once

// Safetensors, the container of Hugging Face: a JSON header and raw row-major tensors.

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
  std::vector<TensorInfo> tensors;               // F32, F16, BF16; in file order
  std::vector<UnusableTensor> unusable_tensors;  // in the format's other types
};

// Reads the header; the result borrows `bytes`. Trusts nothing: the header must fit the file and be
// one JSON object, every tensor must have a known type and as many bytes as its shape and type
// need, and the tensors must tile the data section without a gap or an overlap, as the format's own
// library demands. InvalidArgument names `file`, the field, what was wanted and what was got.
absl::StatusOr<SafetensorsContents> ParseSafetensors(std::span<const std::byte> bytes,
                                                     std::string_view file);

// model.safetensors.index.json: the shard of each tensor.
struct SafetensorsIndex {
  std::map<std::string, std::string> shard_of_tensor;  // tensor name -> file name beside the index
  std::vector<std::string> Shards() const;             // each once, sorted
};

// InvalidArgument when the JSON has another form, or a shard's name leads out of its directory.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json,
                                                       std::string_view file);

}  // namespace quire::files
