// quire generate: sends one prompt, and prints the answer as it arrives.

#include <algorithm>

#include "base/status_macros.h"
#include "client/command.h"
#include "client/generation_output.h"
#include "client/prompt_flags.h"
#include "client/request_flags.h"
#include "client/resuming_stream.h"

namespace quire::client {
namespace {

struct GenerateFlags {
  CommonFlags common;
  PromptFlags prompt;
  bool unary = false;
  int32_t resume_tries = kResumeTries;
  bool stats = false;
};

absl::Status Run(Connection& connection, const GenerateFlags& given,
                 const v1::GenerateRequest& request) {
  // A stream could not choose the best samples, nor search.
  const v1::SamplingParams& sampling = request.sampling();
  const bool chooses = sampling.has_beam() ||
                       (sampling.has_best_of() && sampling.best_of() != std::max(sampling.n(), 1u));
  GenerationPrinter printer({.json = given.common.json,
                             .stats = given.stats,
                             .num_samples = std::max(sampling.n(), sampling.beam().num_return())});
  if (given.unary || chooses) {
    v1::GenerateResponse response;
    RETURN_IF_ERROR(connection.Generate(request, &response));
    printer.Take(response);
  } else {
    RETURN_IF_ERROR(
        StreamResuming(connection, request, given.resume_tries,
                       [&](const v1::GenerateStreamResponse& message) { printer.Take(message); }));
  }
  printer.Finish();
  return absl::OkStatus();
}

}  // namespace

int RunGenerate(const Args& args, Interrupt& interrupt) {
  GenerateFlags given;
  v1::GenerateRequest request;
  base::FlagSet flags("quire generate --prompt TEXT [flags]",
                      "Generates text from a prompt and prints it as it arrives.");
  AddPromptFlags(flags, &given.prompt);
  AddRequestFlags(flags, &request);
  flags.AddSwitch("stats", "print token counts and times on standard error at the end",
                  &given.stats);
  AddResumeFlag(flags, &given.resume_tries);
  flags.AddSwitch("unary", "wait for the whole answer in one message", &given.unary);
  AddCommonFlags(flags, &given.common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  if (const absl::Status status = SetPrompt(flags, given.prompt, &request); !status.ok()) {
    return FailUsage(flags, status);
  }
  if (given.common.json && !request.output().has_token_ids()) {
    request.mutable_output()->set_token_ids(true);
  }

  const auto connection = Connect(given.common, interrupt);
  if (!connection.ok()) return FailUsage(flags, connection.status());
  return Finish(Run(**connection, given, request), interrupt);
}

}  // namespace quire::client
