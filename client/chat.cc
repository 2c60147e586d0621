// quire chat: a conversation on the terminal, or one question.

#include <iostream>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "client/command.h"
#include "client/generation_output.h"
#include "client/request_flags.h"
#include "client/resuming_stream.h"

namespace quire::client {
namespace {

struct ChatFlags {
  CommonFlags common;
  std::string prompt;
  std::string system;
  bool stats = false;
  int32_t resume_tries = kResumeTries;
};

constexpr char kCommands[] =
    "/system TEXT  set the system message, and begin a new conversation\n"
    "/reset        begin a new conversation\n"
    "/exit         leave; Ctrl-D does too. Ctrl-C ends an answer.\n";

void AddMessage(v1::ChatMessages* chat, const char* role, const std::string& content) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

// One conversation. Each turn sends the whole conversation again. The server's prefix cache makes
// this cheap.
class Conversation {
 public:
  Conversation(Connection& connection, Interrupt& interrupt, const ChatFlags& given,
               v1::GenerateRequest request)
      : connection_(connection),
        interrupt_(interrupt),
        given_(given),
        request_(std::move(request)) {
    Begin(given.system);
  }

  void Begin(const std::string& system) {
    system_ = system;
    request_.mutable_chat()->Clear();
    if (!system.empty()) AddMessage(request_.mutable_chat(), "system", system);
  }
  void Reset() { Begin(std::string(system_)); }

  // Asks `question` and prints the answer. Adds both to the conversation, unless the call fails.
  // After Ctrl-C, adds the part of the answer that has arrived.
  absl::Status Ask(const std::string& question) {
    AddMessage(request_.mutable_chat(), "user", question);
    GenerationPrinter printer({.json = given_.common.json,
                               .stats = given_.stats,
                               .num_samples = request_.sampling().n()});
    interrupt_.SetHandler([this] { connection_.CancelAll(); });
    const absl::Status status =
        StreamResuming(connection_, request_, given_.resume_tries,
                       [&](const v1::GenerateStreamResponse& message) { printer.Take(message); });
    interrupted_ = interrupt_.interrupted();
    interrupt_.ClearHandler();
    if (!status.ok() && !interrupted_) {
      request_.mutable_chat()->mutable_messages()->RemoveLast();
      return status;
    }
    printer.Finish();
    AddMessage(request_.mutable_chat(), "assistant", printer.text());
    return absl::OkStatus();
  }
  bool interrupted() const { return interrupted_; }

 private:
  Connection& connection_;
  Interrupt& interrupt_;
  const ChatFlags& given_;
  v1::GenerateRequest request_;
  std::string system_;
  bool interrupted_ = false;
};

// Reads questions and commands until the end of standard input.
int Converse(Conversation& conversation) {
  const bool interactive = isatty(STDIN_FILENO) != 0;
  if (interactive) std::cerr << kCommands;
  std::string line;
  while (true) {
    if (interactive) std::cerr << "\n> ";
    if (!std::getline(std::cin, line)) return kExitOk;
    absl::StripAsciiWhitespace(&line);
    if (line.empty()) continue;
    if (line == "/exit") return kExitOk;
    if (line == "/reset") {
      conversation.Reset();
    } else if (line.starts_with("/system")) {
      std::string system = line.substr(sizeof("/system") - 1);
      absl::StripAsciiWhitespace(&system);
      conversation.Begin(system);
    } else if (line.starts_with("/")) {
      std::cerr << "unknown command " << line << "\n" << kCommands;
    } else if (const absl::Status status = conversation.Ask(line); !status.ok()) {
      const int exit = Fail(status);
      if (!interactive) return exit;
    }
  }
}

}  // namespace

int RunChat(const Args& args, Interrupt& interrupt) {
  ChatFlags given;
  v1::GenerateRequest request;
  base::FlagSet flags(
      "quire chat [--prompt TEXT] [flags]",
      absl::StrCat("Holds a conversation with a model that has a chat template. Commands in it:\n",
                   kCommands));
  flags.Section("Conversation");
  flags.Add("prompt", "TEXT", "send this message, print the answer and leave", &given.prompt);
  flags.SuggestForOperand("prompt");
  flags.AddHabits("prompt", {"p"});
  flags.Add("system", "TEXT", "system message (default: the one in the model's template, if any)",
            &given.system);
  AddRequestFlags(flags, &request, {"request_id"});
  flags.AddSwitch("stats", "print token counts and times on standard error after each answer",
                  &given.stats);
  AddResumeFlag(flags, &given.resume_tries);
  AddCommonFlags(flags, &given.common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  if (given.common.json && !request.output().has_token_ids()) {
    request.mutable_output()->set_token_ids(true);
  }

  const auto connection = Connection::Create(given.common.connection);
  if (!connection.ok()) return FailUsage(flags, connection.status());
  Conversation conversation(**connection, interrupt, given, std::move(request));
  if (!flags.IsSet("prompt")) return Converse(conversation);
  if (const absl::Status status = conversation.Ask(given.prompt); !status.ok()) return Fail(status);
  return conversation.interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace quire::client
