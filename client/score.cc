// quire score: shows the log probabilities of given continuations of one prompt.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "client/command.h"
#include "client/prompt_flags.h"
#include "client/request_flags.h"

namespace quire::client {
namespace {

struct ScoreFlags {
  CommonFlags common;
  PromptFlags prompt;
  std::vector<std::string> continuations;
};

void PrintScores(const ScoreFlags& given, const v1::ScoreResponse& response) {
  Print("  log p  tokens  greedy  continuation\n");
  for (int i = 0; i < response.scores_size(); ++i) {
    const v1::ContinuationScore& score = response.scores(i);
    Print(absl::StrFormat("%7.3f  %6d  %-6s  %s\n", score.logprob(), score.tokens_size(),
                          score.is_greedy() ? "yes" : "no", given.continuations[i]));
  }
}

absl::Status Run(Connection& connection, const ScoreFlags& given, const v1::ScoreRequest& request) {
  v1::ScoreResponse response;
  RETURN_IF_ERROR(connection.Score(request, &response));
  if (given.common.json) {
    Print(ToJsonLine(response));
  } else {
    PrintScores(given, response);
  }
  return absl::OkStatus();
}

}  // namespace

int RunScore(const Args& args, Interrupt& interrupt) {
  ScoreFlags given;
  v1::ScoreRequest request;
  base::FlagSet flags(
      "quire score --prompt TEXT --continuation TEXT --continuation TEXT [flags]",
      "Computes the log probabilities of given continuations of one prompt. Nothing is generated.");
  AddPromptFlags(flags, &given.prompt);
  flags.Section("Continuations");
  flags.Add("continuation", "TEXT",
            "text that may follow the prompt, with the space before it if there is one; repeatable",
            &given.continuations);
  AddRequestFlags(flags, &request);
  AddCommonFlags(flags, &given.common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  if (const absl::Status status = SetPrompt(flags, given.prompt, &request); !status.ok()) {
    return FailUsage(flags, status);
  }
  if (given.continuations.empty()) {
    return FailUsage(flags, absl::InvalidArgumentError("give at least one --continuation"));
  }
  for (const std::string& text : given.continuations) {
    request.add_continuations()->set_text(text);
  }

  const auto connection = Connect(given.common, interrupt);
  if (!connection.ok()) return FailUsage(flags, connection.status());
  return Finish(Run(**connection, given, request), interrupt);
}

}  // namespace quire::client
