#include "convert/converter.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "convert/batch_quantizer.h"
#include "convert/config_to_gguf.h"
#include "convert/llama_cpp.h"
#include "convert/row_reader.h"
#include "convert/tensor_plan.h"
#include "convert/tokenizer_to_gguf.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/cache_scales.h"
#include "engine/model/model_config_reader.h"
#include "files/ggml_types.h"
#include "files/gguf_file_writer.h"
#include "kernels/quant/weight_view.h"

namespace quire::convert {
namespace {

using kernels::WeightType;

struct ConvertType {
  WeightType type;
  int64_t file_type;  // the value of general.file_type, which names the type of most tensors
};
constexpr ConvertType kConvertTypes[] = {
    {WeightType::kF32, 0},  {WeightType::kF16, 1},  {WeightType::kBF16, 32},
    {WeightType::kQ8_0, 7}, {WeightType::kQ4_0, 2}, {WeightType::kQ4_K, 14},
};

WeightType TypeOf(WeightType wanted, bool is_head, int64_t cols) {
  const bool four_bits = wanted == WeightType::kQ4_0 || wanted == WeightType::kQ4_K;
  if (is_head && four_bits) wanted = WeightType::kQ6_K;
  const auto fits = [&](WeightType type) {
    return cols % kernels::Traits(type).block_elements == 0;
  };
  if (fits(wanted)) return wanted;
  wanted = wanted == WeightType::kQ4_K ? WeightType::kQ5_0 : WeightType::kQ8_0;
  return fits(wanted) ? wanted : WeightType::kF16;
}

absl::Status OfTensor(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("tensor ", name, ": ", status.message()));
}

absl::Status WriteTensor(const PlannedTensor& tensor, const files::WeightMap& weights,
                         BatchQuantizer& quantizer, files::GgufFileWriter& file,
                         const std::function<void(int64_t num_weights)>& progress) {
  ASSIGN_OR_RETURN(const RowReader rows, RowReader::Create(tensor, weights));
  const int64_t batch = quantizer.RowsOfBatch(rows.cols());
  std::vector<std::byte> bytes;
  for (int64_t begin = 0; begin < rows.num_rows(); begin += batch) {
    const int64_t count = std::min(batch, rows.num_rows() - begin);
    RETURN_IF_ERROR(quantizer.Run(rows, tensor.type, begin, count, bytes));
    RETURN_IF_ERROR(file.Append(bytes));
    progress(count * rows.cols());
  }
  rows.Drop(weights);
  return absl::OkStatus();
}

// The content of a GGUF file that is not written yet.
struct NewFile {
  engine::ModelConfig config;  // of the model in the file
  files::GgufValues values;
  std::vector<PlannedTensor> plan;

  // Returns the content of the tensor rope_freqs.weight, which comes before the tensors of `plan`.
  // Returns an empty span if the file has no such tensor.
  std::span<const float> divisors() const {
    return config.ropes.empty() ? std::span<const float>() : config.ropes[0].frequency_divisors;
  }
  std::vector<files::GgufTensor> Tensors() const;
};

std::vector<files::GgufTensor> NewFile::Tensors() const {
  std::vector<files::GgufTensor> tensors;
  if (!divisors().empty()) {
    tensors.push_back({"rope_freqs.weight", WeightType::kF32, {std::ssize(divisors())}});
  }
  for (const PlannedTensor& tensor : plan) {
    tensors.push_back({tensor.name, tensor.type, tensor.shape});
  }
  return tensors;
}

absl::StatusOr<NewFile> PlanFile(const engine::ModelConfig& source,
                                 const engine::TensorNames& names, const files::WeightMap& weights,
                                 WeightType wanted) {
  NewFile file = {.config = WithRopeDivisors(source)};
  const engine::ModelConfig& config = file.config;
  RETURN_IF_ERROR(ConfigToGguf(config, file.values));
  const auto type = std::ranges::find(kConvertTypes, wanted, &ConvertType::type);
  file.values.Int("general.file_type", type->file_type);
  file.values.Int("general.quantization_version", 2);  // the version of ggml's block formats
  const engine::Architecture& architecture = *engine::FindArchitecture(config.architecture);
  ASSIGN_OR_RETURN(file.plan, PlanTensors(config, names, weights, architecture.gguf_rope_layout,
                                          architecture.gguf_names(config.layers[0]),
                                          [&](engine::ParameterRole role, int64_t cols) {
                                            const bool is_head =
                                                role == engine::ParameterRole::kHead ||
                                                (role == engine::ParameterRole::kEmbedding &&
                                                 config.tie_word_embeddings);
                                            return TypeOf(wanted, is_head, cols);
                                          }));
  for (const PlannedTensor& tensor : file.plan) RETURN_IF_ERROR(CheckSources(tensor, weights));
  return file;
}

// Checks that Quire's reader would read the model of file.config from `file`.
absl::Status CheckReadBack(const NewFile& file, const std::string& path) {
  std::vector<files::TensorInfo> infos;
  for (const files::GgufTensor& tensor : file.Tensors()) {
    infos.push_back({tensor.name, tensor.type, tensor.shape, {}});
  }
  if (!file.divisors().empty()) infos[0].bytes = std::as_bytes(file.divisors());
  ASSIGN_OR_RETURN(const files::GgufMetadata metadata, file.values.View(path));
  ASSIGN_OR_RETURN(const engine::ModelConfig read_back,
                   engine::ReadGgufModelConfig(metadata, files::TensorList(std::move(infos))));
  return CheckSameModel(file.config, read_back);
}

// Returns InvalidArgument if llama.cpp cannot load a file of `config`. Adds to `warnings` what it
// reads otherwise.
absl::Status CheckForLlamaCpp(const engine::ModelConfig& config, const std::string& path,
                              std::vector<std::string>& warnings) {
  const LlamaCppReading reading = ReadingOfLlamaCpp(config);
  if (!reading.cannot_load.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": llama.cpp cannot load a GGUF file of this model: ", reading.cannot_load,
        "; --for quire writes one for Quire alone"));
  }
  for (const std::string& how : reading.read_other) {
    warnings.push_back(absl::StrCat("llama.cpp reads this file as a model ", how,
                                    ", and answers otherwise than Quire"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ConvertReport> WriteFile(const NewFile& file, const files::WeightMap& weights,
                                        const std::string& path, const ConvertOptions& options) {
  const std::vector<files::GgufTensor> tensors = file.Tensors();
  ConvertReport report = {.num_tensors = std::ssize(tensors)};
  for (const files::GgufTensor& tensor : tensors) {
    report.num_weights += files::NumElements(tensor.shape);
    report.weights_by_type[std::string(files::GgmlTypeOf(tensor.type).name)] +=
        files::NumElements(tensor.shape);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<files::GgufFileWriter> writer,
                   files::GgufFileWriter::Create(path, file.values, tensors));
  if (!file.divisors().empty()) {
    RETURN_IF_ERROR(writer->Append(std::as_bytes(file.divisors())));
  }
  ConvertProgress progress = {.total_weights = report.num_weights};
  progress.num_weights = std::ssize(file.divisors());
  BatchQuantizer quantizer(options.num_threads);
  for (const PlannedTensor& tensor : file.plan) {
    progress.tensor = tensor.name;
    const absl::Status status =
        WriteTensor(tensor, weights, quantizer, *writer, [&](int64_t num_weights) {
          progress.num_weights += num_weights;
          options.progress(progress);
        });
    if (!status.ok()) return OfTensor(tensor.name, status);
  }
  RETURN_IF_ERROR(writer->Finish());
  report.file_bytes = writer->file_bytes();
  report.relative_error = quantizer.relative_error();
  return report;
}

}  // namespace

absl::StatusOr<WeightType> ParseConvertType(std::string_view name) {
  std::string known;
  for (const ConvertType& row : kConvertTypes) {
    const std::string_view type_name = files::GgmlTypeOf(row.type).name;
    if (absl::AsciiStrToUpper(base::ToAbsl(name)) == type_name) return row.type;
    absl::StrAppend(&known, known.empty() ? "" : ", ",
                    absl::AsciiStrToLower(base::ToAbsl(type_name)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("want one of ", known, ", got \"", base::ToAbsl(name), "\""));
}

absl::StatusOr<ConvertReport> ConvertWeights(const engine::ModelConfig& config,
                                             const engine::TensorNames& names,
                                             const files::WeightMap& weights,
                                             const files::GgufValues& more, const std::string& path,
                                             const ConvertOptions& options) {
  ASSIGN_OR_RETURN(NewFile file, PlanFile(config, names, weights, options.type));
  file.values.Append(more);
  RETURN_IF_ERROR(CheckReadBack(file, path));
  std::vector<std::string> warnings;
  if (!options.for_quire_alone) RETURN_IF_ERROR(CheckForLlamaCpp(file.config, path, warnings));
  ASSIGN_OR_RETURN(ConvertReport report, WriteFile(file, weights, path, options));
  report.warnings = std::move(warnings);
  return report;
}

absl::StatusOr<ConvertReport> ConvertToGguf(const files::OpenedModel& model,
                                            const std::string& path,
                                            const ConvertOptions& options) {
  if (!model.hf) {
    return absl::InvalidArgumentError(absl::StrCat(
        model.path, ": want a Hugging Face directory, with config.json and safetensors, got a ",
        base::ToAbsl(model.format()), " file"));
  }
  ASSIGN_OR_RETURN(engine::ModelConfig config, engine::ReadModelConfig(model));
  RETURN_IF_ERROR(engine::ReadCacheScales(model, config));
  const engine::TensorNames names =
      engine::FindArchitecture(config.architecture)->hf_names(config.layers[0]);
  files::GgufValues values;
  values.String("general.name", config.name.empty() ? model.file_name : config.name);
  std::vector<std::string> warnings;
  RETURN_IF_ERROR(TokenizerToGguf(model, config.vocab_size, values, warnings));
  ASSIGN_OR_RETURN(ConvertReport report,
                   ConvertWeights(config, names, *model.weights, values, path, options));
  report.warnings.insert(report.warnings.begin(), warnings.begin(), warnings.end());
  return report;
}

}  // namespace quire::convert
