// quire generate: one prompt, its answer as it comes.

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"

#include "base/status_macros.h"
#include "client/command.h"
#include "client/generation_output.h"
#include "client/request_flags.h"

namespace quire::client {
namespace {

struct GenerateFlags {
  CommonFlags common;
  std::string prompt;
  std::string prompt_file;
  std::string chat_file;
  std::string token_ids;
  bool unary = false;
  bool stats = false;
};

absl::Status SetPrompt(const FlagSet& flags, const GenerateFlags& given,
                       v1::GenerateRequest* request) {
  const char* const kinds[] = {"prompt", "prompt_file", "token_ids", "chat_file"};
  if (std::count_if(std::begin(kinds), std::end(kinds),
                    [&](const char* kind) { return flags.IsSet(kind); }) != 1) {
    return absl::InvalidArgumentError(
        "give the prompt with one of --prompt, --prompt_file, --token_ids, --chat_file");
  }
  if (flags.IsSet("prompt")) {
    request->set_text(given.prompt);
  } else if (flags.IsSet("prompt_file")) {
    ASSIGN_OR_RETURN(*request->mutable_text(), ReadTextFile(given.prompt_file));
  } else if (flags.IsSet("token_ids")) {
    auto ids = ParseIdList(given.token_ids);
    if (!ids.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--token_ids: ", ids.status().message()));
    }
    request->mutable_token_ids()->mutable_ids()->Add(ids->begin(), ids->end());
  } else {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(given.chat_file));
    const auto parsed = google::protobuf::util::JsonStringToMessage(text, request->mutable_chat());
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--chat_file: ", parsed.ToString()));
    }
  }
  return absl::OkStatus();
}

absl::Status Run(Connection& connection, const GenerateFlags& given,
                 const v1::GenerateRequest& request) {
  GenerationPrinter printer(
      {.json = given.common.json, .stats = given.stats, .num_samples = request.sampling().n()});
  if (given.unary) {
    v1::GenerateResponse response;
    RETURN_IF_ERROR(connection.Generate(request, &response));
    printer.Take(response);
  } else {
    RETURN_IF_ERROR(connection.Stream(
        request,
        [&](StreamCall&, const v1::GenerateStreamResponse& message) { printer.Take(message); }));
  }
  printer.Finish();
  return absl::OkStatus();
}

}  // namespace

int RunGenerate(const Args& args, Interrupt& interrupt) {
  GenerateFlags given;
  v1::GenerateRequest request;
  FlagSet flags("quire generate --prompt TEXT [flags]",
                "Generates from a prompt and prints the text as it comes.");
  flags.Section("Prompt (one of)");
  flags.Add("prompt", "TEXT", "this text", &given.prompt);
  flags.Add("prompt_file", "FILE", "this file's text; - is standard input", &given.prompt_file);
  flags.Add("token_ids", "IDS", "these tokens, e.g. 1,2,3", &given.token_ids);
  flags.Add("chat_file", "FILE",
            "a conversation for the model's chat template, as JSON: "
            "{\"messages\": [{\"role\": \"user\", \"content\": \"...\"}]}",
            &given.chat_file);
  AddRequestFlags(flags, &request);
  flags.AddSwitch("stats", "token counts and times on standard error, at the end", &given.stats);
  flags.AddSwitch("unary", "wait for the whole answer in one message", &given.unary);
  AddCommonFlags(flags, &given.common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  if (const absl::Status status = SetPrompt(flags, given, &request); !status.ok()) {
    return FailUsage(flags, status);
  }
  if (given.common.json && !request.output().has_token_ids()) {
    request.mutable_output()->set_token_ids(true);
  }

  const auto connection = Connect(given.common, interrupt);
  if (!connection.ok()) return FailUsage(flags, connection.status());
  const absl::Status status = Run(**connection, given, request);
  const bool interrupted = interrupt.interrupted();
  interrupt.ClearHandler();
  if (interrupted) return kExitInterrupted;
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace quire::client
