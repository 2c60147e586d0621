#include "tools/inspect_command.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

#include "base/flags/flag_set.h"
#include "base/status_macros.h"
#include "engine/frontend/tokenizer_loader.h"
#include "files/model_files.h"
#include "tools/model_report.h"
#include "tools/perplexity_command.h"

namespace quire::tools {
namespace {

constexpr int kBadFile = 1;
constexpr int kBadArguments = 2;
constexpr int kNotSupported = 3;

struct Options {
  std::string model;
  std::optional<std::string> tokenize;
  bool tensors = false;
  bool json = false;
  bool no_special_tokens = false;
  bool measure_perplexity = false;
  PerplexityCommand perplexity;
};

// Declares the command line, whose values go to `options`.
base::FlagSet Flags(Options& options) {
  PerplexityCommand& perplexity = options.perplexity;
  base::FlagSet flags(
      "quire-inspect MODEL [flags]\n"
      "       quire-inspect --perplexity MODEL TEXT [flags]",
      "Shows the contents of a model file and the memory that serving it takes. Needs no server.");
  flags.AddOperand("MODEL", "a .gguf file, a .safetensors file, or a Hugging Face directory",
                   &options.model);
  flags.AddOperand("TEXT", "with --perplexity: a file of text", &perplexity.text_path);
  flags.AddSwitch("tensors", "list every tensor: name, type, shape, size", &options.tensors);
  flags.AddSwitch("json", "print one JSON object instead of text", &options.json);
  flags.Add("tokenize", "TEXT",
            "print only the token ids of TEXT, as a JSON list; special tokens are added and "
            "recognised as for a text prompt",
            &options.tokenize);
  flags.AddSwitch("no_special_tokens", "with --tokenize: add no BOS", &options.no_special_tokens);
  flags.AddSwitch("perplexity",
                  "measure the model's perplexity on the file TEXT. Progress is written to stderr. "
                  "One line on stdout at the end is `perplexity=... error=... scored=...`, or with "
                  "--json one object",
                  &options.measure_perplexity);
  flags.Section("With --perplexity");
  const auto add_integer = [&](std::string name, std::string help, int64_t* target, int64_t min,
                               int64_t max) {
    flags.Add(std::move(name), "N", std::move(help), base::IntegerSetter(target, min, max));
  };
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  add_integer("context", "tokens in a window (default 512)", &perplexity.options.context, 4, kMost);
  add_integer(
      "stride",
      "windows begin N tokens apart, and each scores the tokens that no earlier window had: "
      "Hugging Face's rule. The default is llama.cpp's rule: windows follow one another, "
      "tokens that fill no window are dropped, BOS replaces the first token of each window "
      "where the tokenizer adds one, and the tokens after the first half of each window are "
      "scored",
      &perplexity.options.stride, 1, kMost);
  add_integer("windows", "only the first N windows (default 0: all)",
              &perplexity.options.max_windows, 0, kMost);
  add_integer("threads", "as for quire-server", &perplexity.threads, 0, 1024);
  flags.Add("cpu_isa", "NAME", "as for quire-server", &perplexity.cpu_isa);
  flags.Add("kv_dtype", "NAME", "as for quire-server", &perplexity.kv_dtype);
  flags.AddHabits("context", {"ctx_size", "c"});
  flags.AddHabits("threads", {"t"});
  flags.SetEpilogue(
      "Exit status: 0; 1 when a file cannot be read or used, with one line on stderr; 2 for wrong "
      "arguments; 3 when the model is shown but quire-server would refuse it, because of its "
      "description, a tensor (absent, unknown, or of another shape or type) or its tokenizer "
      "(\"supported no\", with the reason). A chat template that cannot be used is a warning.\n\n"
      "  quire-inspect smollm2-135m-instruct.gguf\n"
      "  quire-inspect smollm2-135m-instruct.gguf --tokenize 'Hello, world'\n"
      "  quire-inspect --perplexity smollm2-135m-instruct.gguf wiki.valid.raw");
  return flags;
}

absl::Status CheckOperands(const Options& options, size_t given) {
  if (given == (options.measure_perplexity ? 2 : 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(options.measure_perplexity ? "want MODEL and TEXT; see --help"
                                                               : "want one MODEL; see --help");
}

// Returns the ids as a JSON list, such as "[1, 2, 3]".
absl::StatusOr<std::string> Tokenize(const files::OpenedModel& model, const Options& options) {
  ASSIGN_OR_RETURN(const auto tokenizer, engine::LoadTokenizer(model));
  ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens,
                   tokenizer->Encode(*options.tokenize, {.kind = options.no_special_tokens
                                                                     ? text::InputKind::kPart
                                                                     : text::InputKind::kPrompt}));
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
  Options options;
  base::FlagSet flags = Flags(options);
  absl::Status status = flags.Parse(args);
  if (flags.help_requested()) {
    out << flags.Help();
    return 0;
  }
  if (status.ok()) status = CheckOperands(options, flags.num_operands());
  if (!status.ok()) {
    err << "quire-inspect: " << status.message() << "\n";
    return kBadArguments;
  }
  options.perplexity.json = options.json;
  const absl::StatusOr<std::pair<std::string, int>> result = Run(options, err);
  if (!result.ok()) {
    err << "quire-inspect: " << result.status().message() << "\n";
    return kBadFile;
  }
  out << result->first;
  return result->second;
}

}  // namespace quire::tools
