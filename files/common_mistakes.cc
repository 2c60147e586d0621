#include "files/common_mistakes.h"

#include <algorithm>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "files/printable.h"

namespace quire::files {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com/spec/";
constexpr std::string_view kMerge =
    "an adapter (LoRA) changes a model and is none: merge it into its model (peft's "
    "merge_and_unload, then save_pretrained) and name the result";

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// True if `text` is a name of the Hub: letters, digits, '-', '_' and '.', not first.
bool IsHubName(std::string_view text) {
  return !text.empty() && text.front() != '.' && text.front() != '-' &&
         std::ranges::all_of(text, [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

}  // namespace

absl::Status CheckIsTheFile(std::string_view start, const std::string& path) {
  if (start.starts_with(kLfsPointer)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": a Git LFS pointer, which stands for the file and has none of its content: run git "
        "lfs pull where it was cloned, or download it with hf download"));
  }
  const absl::string_view page =
      absl::StripLeadingAsciiWhitespace(base::ToAbsl(start.substr(0, 64)));
  if (absl::StartsWithIgnoreCase(page, "<!doctype html") ||
      absl::StartsWithIgnoreCase(page, "<html")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": a web page, not a model file: a link to download has /resolve/ where "
                     "the link of the page has /blob/; or use hf download"));
  }
  return absl::OkStatus();
}

absl::Status CheckIsAModel(const GgufMetadata& metadata) {
  ASSIGN_OR_RETURN(const std::string_view type, metadata.StringOr("general.type", "model"));
  ASSIGN_OR_RETURN(const std::string_view architecture,
                   metadata.StringOr("general.architecture", ""));
  if (type == "adapter") {
    return absl::InvalidArgumentError(
        absl::StrCat(metadata.file(), ": general.type: ", base::ToAbsl(kMerge)));
  }
  if (type == "mmproj" || architecture == "clip") {
    return absl::InvalidArgumentError(
        absl::StrCat(metadata.file(),
                     ": the part of a model that reads images, beside the model: "
                     "name the other file"));
  }
  if (type == "imatrix") {
    return absl::InvalidArgumentError(absl::StrCat(
        metadata.file(), ": statistics for quantising a model, no model: name the other file"));
  }
  return absl::OkStatus();
}

absl::Status CheckHasNoAdapter(const fs::path& directory) {
  if (!Exists(directory / "adapter_config.json")) return absl::OkStatus();
  if (!Exists(directory / "config.json")) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory.string(), ": adapter_config.json: ", base::ToAbsl(kMerge)));
  }
  for (const char* weights : {"adapter_model.safetensors", "adapter_model.bin"}) {
    if (!Exists(directory / weights)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        directory.string(), ": ", weights,
        ": want a model alone, got one with an adapter (LoRA), "
        "which transformers would apply: merge it (peft's merge_and_unload), or take away ",
        weights, " and adapter_config.json to serve the model without it"));
  }
  return absl::OkStatus();
}

std::string MeantByAbsentPath(std::string_view path) {
  bool is_link = false;
  for (const std::string_view scheme : {"https://huggingface.co/", "https://hf.co/", "hf://"}) {
    if (!path.starts_with(scheme)) continue;
    path.remove_prefix(scheme.size());
    is_link = true;
  }
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos) return "";
  const std::string_view owner = path.substr(0, slash);
  std::string_view name = path.substr(slash + 1);
  if (is_link) name = name.substr(0, name.find('/'));
  // A file that is absent from a folder that exists is no repository.
  if (!IsHubName(owner) || !IsHubName(name) || (!is_link && Exists(std::string(owner)))) return "";
  return absl::StrFormat(
      "%s/%s looks like a repository of the Hugging Face Hub: nothing is "
      "downloaded; run `hf download %s/%s --local-dir %s`, and then name the "
      "directory %s",
      owner, name, owner, name, name, name);
}

std::string MeantByDirectory(const fs::path& directory) {
  std::vector<fs::path> snapshots;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory / "snapshots", ignored)) {
    snapshots.push_back(entry.path());
  }
  if (snapshots.empty()) return "";
  return absl::StrCat("a folder of the download cache; name the model inside it: ",
                      std::ranges::min(snapshots).string());
}

}  // namespace quire::files
