// quire generate: sends one prompt, and prints the answer as it arrives.

#include <algorithm>
#include <cstdint>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/status_macros.h"
#include "client/command.h"
#include "client/generation_output.h"
#include "client/prompt_flags.h"
#include "client/request_flags.h"
#include "client/resuming_stream.h"
#include "client/terminal_text.h"

namespace quire::client {
namespace {

struct GenerateFlags {
  CommonFlags common;
  PromptFlags prompt;
  bool unary = false;
  int32_t resume_tries = kResumeTries;
  bool stats = false;
};

// Returns what stands before the answer on a terminal: the prompt of text, which the answer goes on
// from, in a dim color. Otherwise returns "".
std::string Lead(const GenerateFlags& given, const v1::GenerateRequest& request,
                 uint32_t num_samples) {
  const bool is_shown = isatty(STDOUT_FILENO) != 0 && request.has_text() && num_samples <= 1 &&
                        !given.common.json && !request.output().echo();
  if (!is_shown) return "";
  std::vector<std::string> lines = absl::StrSplit(request.text(), '\n');
  for (std::string& line : lines) line = ForTerminal(line);
  return absl::StrCat("\x1b[2m", absl::StrJoin(lines, "\n"), "\x1b[0m");
}

absl::Status Run(Connection& connection, const GenerateFlags& given,
                 const v1::GenerateRequest& request) {
  // A stream could not choose the best samples, nor search.
  const v1::SamplingParams& sampling = request.sampling();
  const bool chooses = sampling.has_beam() ||
                       (sampling.has_best_of() && sampling.best_of() != std::max(sampling.n(), 1u));
  const uint32_t num_samples = std::max(sampling.n(), sampling.beam().num_return());
  GenerationPrinter printer(
      {.json = given.common.json, .stats = given.stats, .num_samples = num_samples});
  std::string lead = Lead(given, request, num_samples);
  if (given.unary || chooses) {
    v1::GenerateResponse response;
    RETURN_IF_ERROR(connection.Generate(request, &response));
    Print(lead);
    printer.Take(response);
  } else {
    RETURN_IF_ERROR(StreamResuming(connection, request, {.tries = given.resume_tries},
                                   [&](const v1::GenerateStreamResponse& message) {
                                     Print(std::exchange(lead, ""));
                                     printer.Take(message);
                                   }));
  }
  printer.Finish();
  return absl::OkStatus();
}

}  // namespace

int RunGenerate(const Args& args, Interrupt& interrupt) {
  GenerateFlags given;
  v1::GenerateRequest request;
  base::FlagSet flags("quire generate --prompt TEXT [flags]",
                      "Generates text from a prompt and prints it as it arrives. On a terminal, "
                      "the text of the prompt stands before a single sample, dim.");
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
