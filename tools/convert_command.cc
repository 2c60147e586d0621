#include "tools/convert_command.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/flags/flag_set.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "convert/converter.h"
#include "files/model_files.h"
#include "tools/progress.h"

namespace quire::tools {
namespace {

constexpr int kFailed = 1;
constexpr int kBadArguments = 2;

struct Options {
  std::string model;
  std::string output;
  std::string type = "q8_0";
  std::string reader = "all";
  int64_t threads = 0;
  bool overwrite = false;
};

// Declares the command line, whose values go to `options`.
base::FlagSet Flags(Options& options) {
  base::FlagSet flags(
      "quire-convert MODEL OUTPUT [flags]",
      "Writes a Hugging Face directory as one GGUF file, quantised, for Quire and llama.cpp.");
  flags.AddOperand("MODEL", "a directory with config.json, tokenizer.json and safetensors",
                   &options.model);
  flags.AddOperand("OUTPUT", "the .gguf file to write; it appears only when it is complete",
                   &options.output);
  flags.Add("type", "TYPE",
            "type of the matrices (default q8_0):\n"
            "  f32, f16, bf16  only bf16 keeps all bits of a bf16 model in 16\n"
            "  q8_0  8.5 bits a weight\n"
            "  q4_k  4.5 bits; q5_0 where rows do not divide by 256\n"
            "  q4_0  4.5 bits; one scale and no minimum for 32 weights\n"
            "In a 4-bit file the head is q6_k, 6.6 bits; rows that are not a multiple of a block "
            "are f16. Norms, biases, routers and learned positions are f32",
            &options.type);
  flags.Add(
      "for", "READER",
      "who is to read the file (default all):\n"
      "  all    Quire and llama.cpp: refuses a model that llama.cpp cannot load, and warns of "
      "what it reads otherwise\n"
      "  quire  Quire alone",
      &options.reader);
  flags.Add("threads", "N", "threads that convert (default: one for each processor)",
            base::IntegerSetter(&options.threads, 0, 1024));
  flags.AddSwitch("overwrite", "replace OUTPUT if it exists", &options.overwrite);
  flags.AddHabits("type", {"outtype", "quant", "dtype"});
  flags.AddHabits("threads", {"t"});
  flags.AddHabits("overwrite", {"force", "f"});
  flags.SetEpilogue(
      "Progress is written to stderr. One line on stdout at the end shows the types of the weights "
      "in the file and their relative error: the root of the sum of squared errors over the sum of "
      "squares. A part of the model that a GGUF file cannot hold is refused, by name, before "
      "anything is written.\n\n"
      "Exit status: 0; 1 when the model cannot be converted or the file cannot be written, with "
      "one line on stderr; 2 for wrong arguments.\n\n"
      "  quire-convert models/quire-stories stories-q4_k.gguf --type q4_k");
  return flags;
}

void Report(const convert::ConvertProgress& so_far, Progress& progress, std::ostream& err) {
  if (!progress.IsDue()) return;
  const double share =
      static_cast<double>(so_far.num_weights) / static_cast<double>(so_far.total_weights);
  err << absl::StrFormat("%.0f %%, %s, %d s left\n", 100.0 * share, std::string(so_far.tensor),
                         progress.SecondsLeft(share))
      << std::flush;
}

std::string Summary(const std::string& path, const convert::ConvertReport& report, double seconds) {
  std::string types;
  for (const auto& [name, num_weights] : report.weights_by_type) {
    absl::StrAppend(&types, types.empty() ? "" : ", ",
                    absl::StrFormat("%s %.1f %%", name,
                                    100.0 * static_cast<double>(num_weights) /
                                        static_cast<double>(report.num_weights)));
  }
  return absl::StrFormat(
      "%s: %d bytes, %d tensors, %d weights (%s), %.2f bits a weight, relative error %.2e, %.1f "
      "s\n",
      path, report.file_bytes, report.num_tensors, report.num_weights, types,
      8.0 * static_cast<double>(report.file_bytes) / static_cast<double>(report.num_weights),
      report.relative_error, seconds);
}

absl::StatusOr<std::string> Run(const Options& options, kernels::WeightType type,
                                std::ostream& err) {
  std::error_code ignored;
  if (!options.overwrite && std::filesystem::exists(options.output, ignored)) {
    return absl::AlreadyExistsError(
        absl::StrCat(options.output, ": is there already; --overwrite replaces it"));
  }
  ASSIGN_OR_RETURN(const files::OpenedModel model, files::OpenModelFiles(options.model));
  Progress progress;
  ASSIGN_OR_RETURN(const convert::ConvertReport report,
                   convert::ConvertToGguf(model, options.output,
                                          {.type = type,
                                           .num_threads = static_cast<int>(options.threads),
                                           .for_quire_alone = options.reader == "quire",
                                           .progress = [&](const convert::ConvertProgress& so_far) {
                                             Report(so_far, progress, err);
                                           }}));
  for (const std::string& warning : report.warnings) err << "warning: " << warning << "\n";
  return Summary(options.output, report, progress.seconds());
}

}  // namespace

int RunConvert(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto bad_arguments = [&](std::string_view message) {
    err << "quire-convert: " << message << "\n";
    return kBadArguments;
  };
  Options options;
  base::FlagSet flags = Flags(options);
  absl::Status status = flags.Parse(args);
  if (flags.help_requested()) {
    out << flags.Help();
    return 0;
  }
  if (status.ok() && flags.num_operands() != 2) {
    status = absl::InvalidArgumentError("want MODEL and OUTPUT; see --help");
  }
  if (status.ok() && options.reader != "all" && options.reader != "quire") {
    status = absl::InvalidArgumentError(
        absl::StrCat("--for: want all or quire, got \"", options.reader, "\""));
  }
  if (!status.ok()) return bad_arguments(base::ToStd(status.message()));
  if (options.threads == 0) {
    options.threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  }
  const absl::StatusOr<kernels::WeightType> type = convert::ParseConvertType(options.type);
  if (!type.ok()) {
    return bad_arguments(absl::StrCat("--type: ", type.status().message()));
  }
  const absl::StatusOr<std::string> text = Run(options, *type, err);
  if (!text.ok()) {
    err << "quire-convert: " << text.status().message() << "\n";
    return kFailed;
  }
  out << *text;
  return 0;
}

}  // namespace quire::tools
