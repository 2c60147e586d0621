#pragma once

// Recognises what people give instead of a model, so that an error can name the mistake.

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "files/gguf_metadata.h"

namespace quire::files {

// Returns InvalidArgument if the file that begins with `start` is not the one that was to be
// downloaded, but a Git LFS pointer or a web page.
absl::Status CheckIsTheFile(std::string_view start, const std::string& path);

// Returns InvalidArgument if `metadata` describe an adapter or another file beside a model.
absl::Status CheckIsAModel(const GgufMetadata& metadata);

// Returns InvalidArgument if a directory holds an adapter, alone or beside a model, which
// transformers would then change by it.
absl::Status CheckHasNoAdapter(const std::filesystem::path& directory);

// Returns what `path`, which does not exist, seems to mean, and what to do. Returns an empty string
// if it seems to mean nothing else.
std::string MeantByAbsentPath(std::string_view path);

// Returns which folder inside a directory without config.json is the model, and an empty string if
// the directory is none of a download cache.
std::string MeantByDirectory(const std::filesystem::path& directory);

}  // namespace quire::files
