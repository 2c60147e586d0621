#include "tools/inspect_command.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/frontend/tokenizer_loader.h"
#include "files/model_files.h"
#include "tools/arguments.h"
#include "tools/model_report.h"
#include "tools/perplexity_command.h"

namespace quire::tools {
namespace {

constexpr int kBadFile = 1;
constexpr int kBadArguments = 2;
constexpr int kNotSupported = 3;

constexpr std::string_view kHelp =
    R"(Shows the contents of a model file and the memory that serving it takes. Needs no server.

Usage: quire-inspect MODEL [options]
       quire-inspect --perplexity MODEL TEXT [options]

  MODEL                a .gguf file, a .safetensors file, or a Hugging Face directory

  --tensors            list every tensor: name, type, shape, size
  --json               print one JSON object instead of text
  --tokenize TEXT      print only the token ids of TEXT, as a JSON list; special tokens are added
                       and recognised as for a text prompt
  --no_special_tokens  with --tokenize: add no BOS or EOS
  --help               print this text

With --perplexity, the model's perplexity on the file TEXT. Progress is written to stderr. One line
on stdout at the end is `perplexity=... error=... scored=...`, or with --json one object.

  --context N          tokens in a window (default 512)
  --stride N           Hugging Face's rule: windows begin N tokens apart, and each scores the tokens
                       that no earlier window had. Default: llama.cpp's rule. Windows follow one
                       another, and tokens that fill no window are dropped. BOS replaces the first
                       token of each window where the tokenizer adds one. The tokens after the first
                       half of each window are scored
  --windows N          only the first N windows (default 0: all)
  --threads N, --cpu_isa NAME, --kv_dtype NAME    as for quire-server

Exit status: 0; 1 when a file cannot be read or used, with one line on stderr; 2 for wrong
arguments; 3 when the model is shown but quire-server would refuse it, because of its description, a
tensor (absent, unknown, or of another shape or type), its tokenizer or its chat template
("supported no", with the reason).

  quire-inspect smollm2-135m-instruct.gguf
  quire-inspect smollm2-135m-instruct.gguf --tokenize 'Hello, world'
  quire-inspect --perplexity smollm2-135m-instruct.gguf wiki.valid.raw
)";

struct Options {
  std::string model;
  std::optional<std::string> tokenize;
  bool tensors = false;
  bool json = false;
  bool no_special_tokens = false;
  bool help = false;
  bool measure_perplexity = false;
  PerplexityCommand perplexity;
};

absl::StatusOr<Options> ReadOptions(const std::vector<std::string>& args) {
  Options options;
  PerplexityCommand& perplexity = options.perplexity;
  const std::vector<Option> known = {
      {.name = "--help", .target = &options.help},
      {.name = "-h", .target = &options.help},
      {.name = "--tensors", .target = &options.tensors},
      {.name = "--json", .target = &options.json},
      {.name = "--tokenize", .target = &options.tokenize},
      {.name = "--no_special_tokens", .target = &options.no_special_tokens},
      {.name = "--perplexity", .target = &options.measure_perplexity},
      {.name = "--context", .target = &perplexity.options.context, .min = 4},
      {.name = "--stride", .target = &perplexity.options.stride, .min = 1},
      {.name = "--windows", .target = &perplexity.options.max_windows},
      {.name = "--threads", .target = &perplexity.threads, .max = 1024},
      {.name = "--cpu_isa", .target = &perplexity.cpu_isa},
      {.name = "--kv_dtype", .target = &perplexity.kv_dtype},
  };
  ASSIGN_OR_RETURN(const std::vector<std::string> operands, ParseArguments(args, known));
  if (options.help) return options;
  const size_t wanted = options.measure_perplexity ? 2 : 1;
  if (operands.size() != wanted) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "want %s, got %d operands", options.measure_perplexity ? "MODEL and TEXT" : "one MODEL",
        operands.size()));
  }
  options.model = operands[0];
  if (options.measure_perplexity) perplexity.text_path = operands[1];
  perplexity.json = options.json;
  return options;
}

// Returns the ids as a JSON list, such as "[1, 2, 3]".
absl::StatusOr<std::string> Tokenize(const files::OpenedModel& model, const Options& options) {
  ASSIGN_OR_RETURN(const auto tokenizer, engine::LoadTokenizer(model));
  const auto tokens =
      tokenizer->Encode(*options.tokenize, {.add_special_tokens = !options.no_special_tokens});
  return absl::StrCat("[",
                      absl::StrJoin(tokens, ", ",
                                    [](std::string* out, const text::EncodedToken& token) {
                                      absl::StrAppend(out, token.id);
                                    }),
                      "]\n");
}

std::string ToString(const ModelReport& report, const Options& options) {
  if (!options.json) return ToText(report, options.tensors);
  // Names in a file need not be UTF-8.
  return ToJson(report, options.tensors)
             .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

// Returns the text for stdout, and the exit status.
absl::StatusOr<std::pair<std::string, int>> Run(const Options& options, std::ostream& err) {
  ASSIGN_OR_RETURN(const files::OpenedModel model, files::OpenModelFiles(options.model));
  if (options.measure_perplexity || options.tokenize) {
    ASSIGN_OR_RETURN(std::string text, options.measure_perplexity
                                           ? RunPerplexity(model, options.perplexity, err)
                                           : Tokenize(model, options));
    return std::pair(std::move(text), 0);
  }
  const ModelReport report = Inspect(model);
  return std::pair(ToString(report, options), report.supported.ok() ? 0 : kNotSupported);
}

}  // namespace

int RunInspect(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Options> options = ReadOptions(args);
  if (!options.ok()) {
    err << "quire-inspect: " << options.status().message() << "; see quire-inspect --help\n";
    return kBadArguments;
  }
  if (options->help) {
    out << kHelp;
    return 0;
  }
  const absl::StatusOr<std::pair<std::string, int>> result = Run(*options, err);
  if (!result.ok()) {
    err << "quire-inspect: " << result.status().message() << "\n";
    return kBadFile;
  }
  out << result->first;
  return result->second;
}

}  // namespace quire::tools
