#pragma once

// GGUF, the container of llama.cpp (ggml/docs/gguf.md): versions 2 and 3, little-endian.

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
inline constexpr int64_t kGgufDefaultAlignment = 32;  // without general.alignment

struct GgufContents {
  uint32_t version = 0;
  int64_t alignment = 0;  // of tensor data, in bytes
  GgufMetadata metadata;
  std::vector<TensorInfo> tensors;               // in file order; aligned to `alignment`
  std::vector<UnusableTensor> unusable_tensors;  // in ggml types that no kernel reads
};

// True if a file that begins with `bytes` is marked as GGUF.
bool HasGgufMagic(std::span<const std::byte> bytes);

// Reads the header; the result borrows `bytes`, which must be aligned to 8 at least. Trusts
// nothing: counts and lengths are compared with the rest of the file before anything is allocated;
// names must be unique, values well formed, tensors aligned, inside the file and disjoint. Time and
// memory are linear in the header's size. InvalidArgument names `file`, the field, what was wanted
// and what was got.
absl::StatusOr<GgufContents> ParseGguf(std::span<const std::byte> bytes, std::string_view file);

}  // namespace quire::files
