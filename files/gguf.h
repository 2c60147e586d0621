#pragma once

// Reads GGUF, the file format of llama.cpp (ggml/docs/gguf.md): versions 2 and 3, little-endian.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "files/gguf_metadata.h"
#include "files/weight_map.h"

namespace quire::files {

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr int64_t kGgufDefaultAlignment = 32;  // if the file has no general.alignment

struct GgufContents {
  uint32_t version = 0;
  int64_t alignment = 0;  // of tensor data, in bytes
  GgufMetadata metadata;
  std::vector<TensorInfo> tensors;               // in file order; data aligned to `alignment`
  std::vector<UnusableTensor> unusable_tensors;  // in ggml types that no kernel reads
};

// True if a file that begins with `bytes` is marked as GGUF.
bool HasGgufMagic(std::span<const std::byte> bytes);

// Reads the header of a GGUF file. The result points into `bytes`, which must be aligned to at
// least 8 bytes. Nothing in the file is trusted. Counts and lengths are compared with the rest of
// the file before anything is allocated. Names must be unique and values well formed. Tensors must
// be aligned, inside the file and disjoint. Time and memory are linear in the size of the header.
// Returns an InvalidArgument error that names `file`, the field, the value that was wanted and the
// value that was found.
absl::StatusOr<GgufContents> ParseGguf(std::span<const std::byte> bytes, std::string_view file);

}  // namespace quire::files
