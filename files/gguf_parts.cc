#include "files/gguf_parts.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"

namespace quire::files {
namespace {

constexpr std::string_view kCount = "split.count";
constexpr std::string_view kNumber = "split.no";  // of a part, from 0
constexpr std::string_view kTensorCount = "split.tensors.count";
constexpr int64_t kMostParts = 99999;  // the name has five digits
constexpr std::string_view kExtension = ".gguf";

// Returns the end of the name of part `number`, counted from 1.
std::string NameEnd(int64_t number, int64_t count) {
  return absl::StrFormat("-%05d-of-%05d%s", number, count, kExtension);
}

absl::Status Error(const GgufMetadata& metadata, std::string_view key, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s", metadata.file(), key, what));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> GgufPartPaths(const GgufMetadata& metadata,
                                                       const std::string& path) {
  ASSIGN_OR_RETURN(const int64_t count, metadata.IntOr(kCount, 1));
  if (count == 0 || count == 1) return std::vector<std::string>{path};  // 0: parts were merged
  if (count < 0 || count > kMostParts) {
    return Error(metadata, kCount,
                 absl::StrFormat("want at most %d parts, got %d", kMostParts, count));
  }
  ASSIGN_OR_RETURN(const int64_t number, metadata.IntOr(kNumber, 0));
  if (number != 0) {
    return Error(metadata, kNumber,
                 absl::StrFormat("want the first part of %d, whose name ends in %s, got part %d: "
                                 "name the first, the others are found beside it",
                                 count, NameEnd(1, count), number + 1));
  }
  const std::string end = NameEnd(1, count);
  if (!path.ends_with(end)) {
    return Error(metadata, kCount,
                 absl::StrFormat("want a name that ends in %s for the first of %d parts: give all "
                                 "parts their names, or merge them with llama-gguf-split --merge",
                                 end, count));
  }
  const std::string begin = path.substr(0, path.size() - end.size());
  std::vector<std::string> paths;
  for (int64_t i = 1; i <= count; ++i) paths.push_back(begin + NameEnd(i, count));
  return paths;
}

std::string NameOfGgufParts(std::string_view first, int64_t count) {
  const std::string end = NameEnd(1, count);
  if (count == 1 || first == end) return std::string(first);
  return std::string(first.substr(0, first.size() - end.size())).append(kExtension);
}

absl::Status AddGgufPart(GgufContents part, int64_t number, GgufContents& first) {
  ASSIGN_OR_RETURN(const int64_t count, first.metadata.IntOr(kCount, 1));
  ASSIGN_OR_RETURN(const int64_t count_of_part, part.metadata.IntOr(kCount, 1));
  if (count_of_part != count) {
    return Error(part.metadata, kCount,
                 absl::StrFormat("want %d, as in %s, got %d: the file is of another model", count,
                                 first.metadata.file(), count_of_part));
  }
  ASSIGN_OR_RETURN(const int64_t number_of_part, part.metadata.IntOr(kNumber, -1));
  if (number_of_part != number - 1) {
    return Error(part.metadata, kNumber,
                 absl::StrFormat("want %d, as in the file's name, got %d: the file was renamed",
                                 number - 1, number_of_part));
  }
  std::ranges::move(part.tensors, std::back_inserter(first.tensors));
  std::ranges::move(part.unusable_tensors, std::back_inserter(first.unusable_tensors));
  return absl::OkStatus();
}

absl::Status CheckGgufTensorCount(const GgufContents& whole) {
  const int64_t got = std::ssize(whole.tensors) + std::ssize(whole.unusable_tensors);
  ASSIGN_OR_RETURN(const int64_t wanted, whole.metadata.IntOr(kTensorCount, got));
  ASSIGN_OR_RETURN(const int64_t parts, whole.metadata.IntOr(kCount, 1));
  if (parts <= 1 || got == wanted) return absl::OkStatus();
  return Error(whole.metadata, kTensorCount,
               absl::StrFormat("want %d tensors in %d parts, got %d: the parts are of different "
                               "models",
                               wanted, parts, got));
}

}  // namespace quire::files
