// quire-random-model: writes a GGUF file of random weights, to measure a model of any size where
// its weights cannot be had.

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "nlohmann/json.hpp"

#include "base/flags/flag_set.h"
#include "base/status_macros.h"
#include "convert/converter.h"
#include "convert/tokenizer_to_gguf.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/decoder_tensors.h"
#include "engine/model/model_config_reader.h"
#include "files/model_files.h"
#include "files/weight_map.h"
#include "kernels/quant/float16.h"

namespace quire::bench {
namespace {

constexpr float kDeviation = 0.02f;         // of the matrices, as of trained ones
constexpr int64_t kTileWeights = 16 << 20;  // random weights that are repeated

// Weights in bf16, all in one array. A matrix begins at a random place of the array, and
// every element of a vector, such as a norm's, is 1.
class RandomWeights final : public files::TensorList {
 public:
  // Adds the tensors that a directory of Hugging Face has for `config`.
  void AddAll(const engine::ModelConfig& config, const engine::TensorNames& names);

 private:
  // Fills the arrays with this many weights, and as many ones.
  void Fill(int64_t num_weights, int64_t num_ones);

  std::vector<uint16_t> weights_, ones_;
  std::mt19937_64 random_{0};
};

void RandomWeights::Fill(int64_t num_weights, int64_t num_ones) {
  ones_.assign(static_cast<size_t>(num_ones), kernels::F32ToBf16(1.0f));
  weights_.resize(static_cast<size_t>(num_weights));
  std::normal_distribution<float> normal(0.0f, kDeviation);
  const auto tile = static_cast<size_t>(std::min(kTileWeights, num_weights));
  std::generate_n(weights_.begin(), tile, [&] { return kernels::F32ToBf16(normal(random_)); });
  for (size_t i = tile; i < weights_.size(); ++i) weights_[i] = weights_[i - tile];
}

void RandomWeights::AddAll(const engine::ModelConfig& config, const engine::TensorNames& names) {
  const engine::DecoderTensors stored =
      engine::FindTensors(config, names, [](std::string_view) { return true; });
  int64_t largest = 0, longest_vector = 0;
  for (const engine::StoredParameter* parameter : engine::AllParameters(stored)) {
    for (const engine::NamedRows& part : parameter->parts) {
      mutable_tensors().push_back({.name = part.name,
                                   .type = kernels::WeightType::kBF16,
                                   .shape = engine::ShapeOf(part, parameter->cols)});
      const int64_t size = files::NumElements(tensors().back().shape);
      int64_t& most = parameter->cols == 0 ? longest_vector : largest;
      most = std::max(most, size);
    }
  }
  Fill(largest + kTileWeights, longest_vector);
  std::uniform_int_distribution<size_t> place(0, kTileWeights);
  for (files::TensorInfo& tensor : mutable_tensors()) {
    const auto size = static_cast<size_t>(files::NumElements(tensor.shape));
    const std::span<const uint16_t> from = tensor.shape.size() == 1
                                               ? std::span<const uint16_t>(ones_)
                                               : std::span(weights_).subspan(place(random_));
    tensor.bytes = std::as_bytes(from.first(size));
  }
}

struct Options {
  std::string config, tokenizer, output;
  std::string type = "bf16";
};

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const kernels::WeightType type, convert::ParseConvertType(options.type));
  ASSIGN_OR_RETURN(const files::OpenedModel tokenizer, files::OpenModelFiles(options.tokenizer));
  std::ifstream file(options.config);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(options.config, ": want a JSON object"));
  }
  RandomWeights weights;
  ASSIGN_OR_RETURN(const engine::ModelConfig config,
                   engine::ReadHfModelConfig(json, options.config, weights));
  const engine::TensorNames names =
      engine::FindArchitecture(config.architecture)->hf_names(config.layers[0]);
  weights.AddAll(config, names);
  files::GgufValues values;
  values.String("general.name", "random");
  std::vector<std::string> warnings;
  RETURN_IF_ERROR(convert::TokenizerToGguf(tokenizer, config.vocab_size, values, warnings));
  ASSIGN_OR_RETURN(
      const convert::ConvertReport report,
      convert::ConvertWeights(
          config, names, weights, values, options.output,
          {.type = type, .num_threads = static_cast<int>(std::thread::hardware_concurrency())}));
  std::cout << options.output << ": " << report.num_weights << " weights, " << report.file_bytes
            << " bytes\n";
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  Options options;
  base::FlagSet flags("quire-random-model CONFIG TOKENIZER OUTPUT [flags]",
                      "Writes a GGUF file of random weights.");
  flags.AddOperand("CONFIG", "a config.json of Hugging Face", &options.config);
  flags.AddOperand("TOKENIZER", "a directory of Hugging Face whose tokenizer the file gets",
                   &options.tokenizer);
  flags.AddOperand("OUTPUT", "the .gguf file to write", &options.output);
  flags.Add("type", "TYPE", "type of the matrices, as for quire-convert (default bf16)",
            &options.type);
  absl::Status status = flags.Parse(args);
  if (flags.help_requested()) {
    std::cout << flags.Help();
    return 0;
  }
  if (status.ok() && flags.num_operands() != 3) {
    status = absl::InvalidArgumentError("want CONFIG, TOKENIZER and OUTPUT; see --help");
  }
  if (status.ok()) status = Run(options);
  if (status.ok()) return 0;
  std::cerr << "quire-random-model: " << status.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return quire::bench::Main({argv + 1, argv + argc});
}
