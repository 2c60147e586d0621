#pragma once

// A GGUF model in several files, as llama-gguf-split writes it: NAME-00001-of-00003.gguf and so on.
// The first file has the metadata, and each file has some of the tensors.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "files/gguf.h"

namespace quire::files {

// Returns the paths of all parts of the model whose first part is at `path` and has `metadata`. The
// result is only `path` if the model is whole. Returns InvalidArgument if the file is another part,
// or if its name does not tell the names of the others.
absl::StatusOr<std::vector<std::string>> GgufPartPaths(const GgufMetadata& metadata,
                                                       const std::string& path);

// Returns NAME.gguf for `first`, the file name of the first of `count` parts, which GgufPartPaths
// accepted. Returns `first` if that is the only part or has no NAME.
std::string NameOfGgufParts(std::string_view first, int64_t count);

// Moves the tensors of a part to `first`, the contents of the first part. `number` counts from 1.
// Returns InvalidArgument if the part belongs to another model or has another number.
absl::Status AddGgufPart(GgufContents part, int64_t number, GgufContents& first);

// Returns InvalidArgument if `whole`, to which all parts were added, has fewer or more tensors than
// its metadata say. Accepts a model that is no part of several and says nothing.
absl::Status CheckGgufTensorCount(const GgufContents& whole);

}  // namespace quire::files
