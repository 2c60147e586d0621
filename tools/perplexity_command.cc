#include "tools/perplexity_command.h"

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/load/engine_loader.h"
#include "engine/model/model_config_reader.h"
#include "files/mapped_file.h"
#include "tools/progress.h"

namespace quire::tools {
namespace {

void Report(const Perplexity& so_far, int64_t num_windows, Progress& progress, std::ostream& err) {
  if (!progress.IsDue() && so_far.num_windows < num_windows) return;
  const double share = static_cast<double>(so_far.num_windows) / static_cast<double>(num_windows);
  err << absl::StrFormat("window %d of %d, perplexity %.4f, %d s left\n", so_far.num_windows,
                         num_windows, so_far.perplexity, progress.SecondsLeft(share))
      << std::flush;
}

absl::StatusOr<std::vector<int32_t>> Tokenize(const text::Tokenizer& tokenizer,
                                              std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // The text comes from outside, so a special token written in it is ordinary text.
  ASSIGN_OR_RETURN(const std::vector<text::EncodedToken> tokens,
                   tokenizer.Encode(text, {.parse_special_tokens = false}));
  std::vector<int32_t> ids;
  for (const text::EncodedToken& token : tokens) ids.push_back(token.id);
  return ids;
}

// Returns the BOS that the tokenizer puts before a text, or -1.
int32_t AddedBos(const text::Tokenizer& tokenizer) {
  const std::vector<int32_t>& added = tokenizer.frame().prefix_ids;
  return !added.empty() && added[0] == tokenizer.bos_id() ? added[0] : -1;
}

}  // namespace

absl::StatusOr<std::string> RunPerplexity(const files::OpenedModel& model,
                                          const PerplexityCommand& command, std::ostream& err) {
  const PerplexityOptions& options = command.options;
  if (options.stride > options.context) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--stride: want at most --context, %d, got %d: tokens between windows "
                        "would not be scored",
                        options.context, options.stride));
  }
  ASSIGN_OR_RETURN(const engine::ModelConfig config, engine::ReadModelConfig(model));
  if (options.context > config.max_position_embeddings && !ServesBeyondItsContext(config)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--context: want at most %d, the model's own, got %d",
                        config.max_position_embeddings, options.context));
  }
  ASSIGN_OR_RETURN(const auto text, files::MappedFile::Open(command.text_path));
  ASSIGN_OR_RETURN(engine::EngineParts parts,
                   engine::LoadEngineParts({.model_path = model.path,
                                            .cpu_isa = command.cpu_isa,
                                            .threads = static_cast<int32_t>(command.threads),
                                            .kv_dtype = command.kv_dtype,
                                            .max_num_seqs = 1,
                                            .max_model_len = options.context}));
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, Tokenize(*parts.tokenizer, text->bytes()));
  ASSIGN_OR_RETURN(const std::vector<TextWindow> windows, MakeWindows(std::ssize(tokens), options));
  Progress progress;
  const bool llama_cpp = options.stride == 0;
  ASSIGN_OR_RETURN(
      const Perplexity result,
      ComputePerplexity(
          parts, tokens, options, llama_cpp ? AddedBos(*parts.tokenizer) : -1,
          [&](const Perplexity& so_far) { Report(so_far, std::ssize(windows), progress, err); }));
  const char* rule = llama_cpp ? "llama.cpp" : "strided";
  if (!command.json) {
    return absl::StrFormat(
        "perplexity=%.4f error=%.4f rule=%s context=%d stride=%d windows=%d scored=%d tokens=%d "
        "seconds=%.1f\n",
        result.perplexity, result.error, rule, options.context, options.stride, result.num_windows,
        result.num_scored, tokens.size(), progress.seconds());
  }
  const nlohmann::ordered_json report = {{"perplexity", result.perplexity},
                                         {"error", result.error},
                                         {"rule", rule},
                                         {"context", options.context},
                                         {"stride", options.stride},
                                         {"num_windows", result.num_windows},
                                         {"num_scored", result.num_scored},
                                         {"num_tokens", tokens.size()},
                                         {"seconds", progress.seconds()},
                                         {"isa_path", parts.server_info.isa_path},
                                         {"weight_type", config.weight_type},
                                         {"kv_dtype", parts.model_info.kv_dtype}};
  return report.dump() + "\n";
}

}  // namespace quire::tools
