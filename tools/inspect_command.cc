#include "tools/inspect_command.h"

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/frontend/tokenizer_loader.h"
#include "engine/weights/model_files.h"
#include "tools/model_report.h"

namespace quire::tools {
namespace {

constexpr int kBadFile = 1;
constexpr int kBadArguments = 2;

constexpr std::string_view kHelp =
    R"(Shows what a model file holds and what serving it takes, without a server.

Usage: quire-inspect MODEL [options]

  MODEL                a .gguf file, a .safetensors file, or a Hugging Face directory

  --tensors            list every tensor: name, type, shape, size
  --json               print one JSON object instead of text
  --tokenize TEXT      print the token ids of TEXT as a JSON list, and nothing else; special tokens are
                       added and recognised as for a text prompt
  --no_special_tokens  with --tokenize: add no BOS or EOS
  --help               this text

Exit status: 0; 1 when MODEL cannot be read, with one line on stderr; 2 for wrong arguments.

  quire-inspect smollm2-135m-instruct.gguf
  quire-inspect smollm2-135m-instruct.gguf --tokenize 'Hello, world'
)";

struct Options {
  std::string model;
  std::optional<std::string> tokenize;
  bool tensors = false;
  bool json = false;
  bool special_tokens = true;
  bool help = false;
};

absl::StatusOr<Options> ParseArguments(const std::vector<std::string>& args) {
  Options options;
  bool only_files = false;  // after "--"
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    constexpr std::string_view kTokenize = "--tokenize=";
    if (only_files || !arg.starts_with("-") || arg == "-") {
      if (!options.model.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("want one MODEL, got a second: ", arg));
      }
      options.model = arg;
    } else if (arg == "--") {
      only_files = true;
    } else if (arg == "--help" || arg == "-h") {
      options.help = true;
    } else if (arg == "--tensors") {
      options.tensors = true;
    } else if (arg == "--json") {
      options.json = true;
    } else if (arg == "--no_special_tokens") {
      options.special_tokens = false;
    } else if (arg == "--tokenize") {
      if (++i == args.size()) return absl::InvalidArgumentError("--tokenize: want a text after it");
      options.tokenize = args[i];
    } else if (arg.starts_with(kTokenize)) {
      options.tokenize = arg.substr(kTokenize.size());
    } else {
      return absl::InvalidArgumentError(absl::StrCat("unknown option ", arg));
    }
  }
  if (options.model.empty() && !options.help) return absl::InvalidArgumentError("want a MODEL");
  return options;
}

// "[1, 2, 3]"
absl::StatusOr<std::string> Tokenize(const engine::OpenedModel& model, const Options& options) {
  ASSIGN_OR_RETURN(const auto tokenizer, engine::LoadTokenizer(model));
  const auto tokens =
      tokenizer->Encode(*options.tokenize, {.add_special_tokens = options.special_tokens});
  return absl::StrCat("[",
                      absl::StrJoin(tokens, ", ",
                                    [](std::string* out, const engine::EncodedToken& token) {
                                      absl::StrAppend(out, token.id);
                                    }),
                      "]\n");
}

absl::StatusOr<std::string> Run(const Options& options) {
  ASSIGN_OR_RETURN(const engine::OpenedModel model, engine::OpenModelFiles(options.model));
  if (options.tokenize) return Tokenize(model, options);
  const ModelReport report = Inspect(model);
  if (!options.json) return ToText(report, options.tensors);
  // Names in a file need not be UTF-8.
  return ToJson(report, options.tensors)
             .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace

int RunInspect(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Options> options = ParseArguments(args);
  if (!options.ok()) {
    err << "quire-inspect: " << options.status().message() << "; see quire-inspect --help\n";
    return kBadArguments;
  }
  if (options->help) {
    out << kHelp;
    return 0;
  }
  const absl::StatusOr<std::string> text = Run(*options);
  if (!text.ok()) {
    err << "quire-inspect: " << text.status().message() << "\n";
    return kBadFile;
  }
  out << *text;
  return 0;
}

}  // namespace quire::tools
