#include "files/model_files.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/json.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "files/common_mistakes.h"
#include "files/gguf.h"
#include "files/gguf_parts.h"
#include "files/mapped_file.h"
#include "files/mapped_weights.h"
#include "files/printable.h"
#include "files/safetensors.h"

namespace quire::files {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kWanted =
    "a .gguf file, or a Hugging Face directory with config.json and "
    "model.safetensors";
constexpr int64_t kMaxTextBytes = int64_t{256} << 20;  // a tokenizer.json of 256k tokens has 40 MB

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string_view Characters(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Maps a file that was downloaded. Returns InvalidArgument if something else came instead.
absl::StatusOr<std::unique_ptr<MappedFile>> OpenDownloaded(const fs::path& path) {
  ASSIGN_OR_RETURN(auto file, MappedFile::Open(path.string()));
  RETURN_IF_ERROR(CheckIsTheFile(Characters(*file), path.string()));
  return file;
}

absl::StatusOr<std::unique_ptr<MappedFile>> OpenText(const fs::path& path) {
  ASSIGN_OR_RETURN(auto file, OpenDownloaded(path));
  if (static_cast<int64_t>(file->bytes().size()) > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: want at most %d bytes, got %d", path.string(), kMaxTextBytes, file->bytes().size()));
  }
  return file;
}

// Reads a text file. Returns an empty string when there is no such file.
absl::StatusOr<std::string> ReadOptionalText(const fs::path& path) {
  if (!Exists(path)) return std::string();
  ASSIGN_OR_RETURN(const auto file, OpenText(path));
  return std::string(Characters(*file));
}

absl::StatusOr<json> ReadObject(const fs::path& path) {
  ASSIGN_OR_RETURN(const auto file, OpenText(path));
  ASSIGN_OR_RETURN(json value, base::ParseJson(Characters(*file), path.string()));
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: want a JSON object, got %s", path.string(), value.type_name()));
  }
  return value;
}

// Reads a JSON object. Returns null JSON when there is no such file.
absl::StatusOr<json> ReadOptionalObject(const fs::path& path) {
  if (!Exists(path)) return json();
  return ReadObject(path);
}

absl::Status OpenGguf(std::unique_ptr<MappedFile> file, OpenedModel& model) {
  const std::string first = file->path();
  ASSIGN_OR_RETURN(GgufContents contents, ParseGguf(file->bytes(), first));
  RETURN_IF_ERROR(CheckIsAModel(contents.metadata));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, GgufPartPaths(contents.metadata, first));
  std::vector<std::unique_ptr<MappedFile>> files;
  files.push_back(std::move(file));
  for (size_t i = 1; i < paths.size(); ++i) {
    if (!Exists(paths[i])) {
      return absl::NotFoundError(
          absl::StrFormat("%s: want part %d of %d beside it, got no file %s: the download is not "
                          "complete",
                          first, i + 1, paths.size(), paths[i]));
    }
    ASSIGN_OR_RETURN(auto part, OpenDownloaded(paths[i]));
    ASSIGN_OR_RETURN(GgufContents of_part, ParseGguf(part->bytes(), part->path()));
    RETURN_IF_ERROR(AddGgufPart(std::move(of_part), static_cast<int64_t>(i) + 1, contents));
    files.push_back(std::move(part));
  }
  RETURN_IF_ERROR(CheckGgufTensorCount(contents));
  model.file_name = NameOfGgufParts(model.file_name, std::ssize(paths));
  model.gguf = std::move(contents.metadata);
  model.gguf_version = contents.version;
  ASSIGN_OR_RETURN(model.weights,
                   MappedWeights::Create(std::move(files), std::move(contents.tensors),
                                         std::move(contents.unusable_tensors)));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WeightMap>> OpenShards(const std::vector<fs::path>& paths) {
  std::vector<std::unique_ptr<MappedFile>> files;
  SafetensorsContents all;
  for (const fs::path& path : paths) {
    ASSIGN_OR_RETURN(auto file, OpenDownloaded(path));
    ASSIGN_OR_RETURN(SafetensorsContents contents, ParseSafetensors(file->bytes(), path.string()));
    files.push_back(std::move(file));
    std::ranges::move(contents.tensors, std::back_inserter(all.tensors));
    std::ranges::move(contents.unusable_tensors, std::back_inserter(all.unusable_tensors));
  }
  ASSIGN_OR_RETURN(auto weights, MappedWeights::Create(std::move(files), std::move(all.tensors),
                                                       std::move(all.unusable_tensors)));
  return std::unique_ptr<WeightMap>(std::move(weights));
}

absl::StatusOr<std::unique_ptr<WeightMap>> OpenIndexed(const fs::path& index_path) {
  ASSIGN_OR_RETURN(const auto index_file, OpenText(index_path));
  ASSIGN_OR_RETURN(const SafetensorsIndex index,
                   ParseSafetensorsIndex(Characters(*index_file), index_path.string()));
  std::vector<fs::path> paths;
  for (const std::string& shard : index.Shards()) {
    paths.push_back(index_path.parent_path() / shard);
    if (!Exists(paths.back())) {
      return absl::NotFoundError(
          absl::StrFormat("%s: want shard %s beside it, got no such file: the "
                          "download is not complete",
                          index_path.string(), Printable(shard)));
    }
  }
  ASSIGN_OR_RETURN(auto weights, OpenShards(paths));
  for (const auto& [tensor, shard] : index.shard_of_tensor) {
    const bool unusable =
        std::ranges::find(weights->unusable_tensors(), tensor, &UnusableTensor::name) !=
        weights->unusable_tensors().end();
    if (weights->Find(tensor) == nullptr && !unusable) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: want tensor %s in %s, got none of that name", index_path.string(),
                          Printable(tensor), Printable(shard)));
    }
  }
  return weights;
}

absl::StatusOr<std::unique_ptr<WeightMap>> OpenHfWeights(const fs::path& directory) {
  const fs::path index = directory / "model.safetensors.index.json";
  const fs::path single = directory / "model.safetensors";
  if (Exists(single)) return OpenShards({single});
  if (Exists(index)) return OpenIndexed(index);
  const bool pickled =
      Exists(directory / "pytorch_model.bin") || Exists(directory / "pytorch_model.bin.index.json");
  return absl::NotFoundError(absl::StrFormat(
      "%s: want model.safetensors or model.safetensors.index.json, got neither%s",
      directory.string(),
      pickled ? "; pytorch_model.bin is not read: save the model with safe_serialization=True"
              : ""));
}

absl::Status OpenDirectory(const fs::path& directory, OpenedModel& model) {
  RETURN_IF_ERROR(CheckHasNoAdapter(directory));
  if (!Exists(directory / "config.json")) {
    std::vector<fs::path> gguf_files;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory, ignored)) {
      if (entry.path().extension() == ".gguf") gguf_files.push_back(entry.path());
    }
    if (!gguf_files.empty()) {
      return absl::NotFoundError(
          absl::StrFormat("%s: no config.json there; to serve the GGUF file in it, name "
                          "the file: %s",
                          directory.string(), std::ranges::min(gguf_files).string()));
    }
    const std::string meant = MeantByDirectory(directory);
    return absl::NotFoundError(
        meant.empty()
            ? absl::StrFormat("no config.json in %s: want %s", directory.string(), kWanted)
            : absl::StrFormat("%s: %s", directory.string(), meant));
  }
  HfFiles& hf = model.hf.emplace();
  ASSIGN_OR_RETURN(hf.config, ReadObject(directory / "config.json"));
  ASSIGN_OR_RETURN(hf.generation_config, ReadOptionalObject(directory / "generation_config.json"));
  ASSIGN_OR_RETURN(hf.tokenizer_config, ReadOptionalObject(directory / "tokenizer_config.json"));
  ASSIGN_OR_RETURN(hf.tokenizer_json, ReadOptionalText(directory / "tokenizer.json"));
  ASSIGN_OR_RETURN(model.chat_template_jinja, ReadOptionalText(directory / "chat_template.jinja"));
  ASSIGN_OR_RETURN(model.weights, OpenHfWeights(directory));
  return absl::OkStatus();
}

absl::Status OpenFile(const fs::path& path, OpenedModel& model) {
  ASSIGN_OR_RETURN(auto file, OpenDownloaded(path));
  if (HasGgufMagic(file->bytes()) || path.extension() == ".gguf")
    return OpenGguf(std::move(file), model);
  if (path.extension() == ".safetensors") {
    file.reset();
    ASSIGN_OR_RETURN(model.weights, OpenShards({path}));
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: not a model file: want %s", path.string(), kWanted));
}

}  // namespace

absl::StatusOr<OpenedModel> OpenModelFiles(const std::string& path) {
  fs::path given(path);
  if (!given.has_filename()) given = given.parent_path();  // "dir/" names "dir"
  OpenedModel model{.path = path, .file_name = given.filename().string()};
  std::error_code error;
  const fs::file_status status = fs::status(given, error);
  if (status.type() == fs::file_type::not_found || path.empty()) {
    const std::string meant = MeantByAbsentPath(path);
    return absl::NotFoundError(
        absl::StrFormat("%s: no such file or directory: %s", path,
                        meant.empty() ? absl::StrCat("want ", base::ToAbsl(kWanted)) : meant));
  }
  if (error) return absl::PermissionDeniedError(absl::StrFormat("%s: %s", path, error.message()));
  RETURN_IF_ERROR(status.type() == fs::file_type::directory ? OpenDirectory(given, model)
                                                            : OpenFile(given, model));
  return model;
}

absl::Status OpenedModel::ReplaceChatTemplate(const std::string& file) {
  ASSIGN_OR_RETURN(const auto text, OpenText(file));
  chat_template_jinja = std::string(Characters(*text));
  return absl::OkStatus();
}

absl::StatusOr<std::string> OpenedModel::ChatTemplate() const {
  if (!chat_template_jinja.empty()) return chat_template_jinja;
  if (gguf) {
    ASSIGN_OR_RETURN(const std::string_view source, gguf->StringOr("tokenizer.chat_template", ""));
    return std::string(source);
  }
  if (!hf || !hf->tokenizer_config.is_object()) return std::string();
  const auto found = hf->tokenizer_config.find("chat_template");
  if (found == hf->tokenizer_config.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {  // a list of named templates
    for (const json& entry : *found) {
      const json name = entry.is_object() ? entry.value("name", json()) : json();
      const json source = entry.is_object() ? entry.value("template", json()) : json();
      if (name == "default" && source.is_string()) return source.get<std::string>();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: tokenizer_config.json: chat_template: want a string, or a list with one "
                      "named \"default\", got %s",
                      path, found->type_name()));
}

}  // namespace quire::files
