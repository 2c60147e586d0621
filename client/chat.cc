// quire chat: a conversation on the terminal, or one question.

#include <iostream>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/command.h"
#include "client/generation_output.h"
#include "client/request_flags.h"
#include "client/resuming_stream.h"
#include "client/terminal_text.h"

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
    "/again        ask the last question again, after an error\n"
    "/exit         leave; Ctrl-D does too. Ctrl-C ends an answer.\n";

void AddMessage(v1::ChatMessages* chat, const char* role, const std::string& content) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

// How long the server keeps the session of a conversation in which nothing is asked. Afterwards the
// whole conversation is sent again.
constexpr int64_t kSessionSeconds = 3600;

// One conversation. It is a session of the server, so each turn sends the new messages only, and
// the answers are never tokenized. After each turn, what the session has is asked for, so that
// another server can go on with it. Without a session, each turn sends all messages.
class Conversation {
 public:
  // `wants_session` is false if only one question is asked.
  Conversation(Connection& connection, Interrupt& interrupt, const ChatFlags& given,
               v1::GenerateRequest request, bool wants_session)
      : connection_(connection),
        interrupt_(interrupt),
        given_(given),
        request_(std::move(request)),
        // A session has one sample a turn, all its tokens, and the caller's own tenant.
        wants_session_(wants_session && request_.sampling().n() <= 1 &&
                       request_.cache().window_tokens() == 0 && !request_.sched().has_tenant()) {
    Begin(given.system);
  }
  ~Conversation() { CloseSession(); }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  void Begin(const std::string& system) {
    CloseSession();
    system_ = system;
    messages_.Clear();
    if (!system.empty()) AddMessage(&messages_, "system", system);
  }
  void Reset() { Begin(std::string(system_)); }

  // Asks `question` and prints the answer. Adds both to the conversation, unless the call fails.
  // After Ctrl-C, adds the part of the answer that has arrived.
  absl::Status Ask(const std::string& question) {
    AddMessage(&messages_, "user", question);
    GenerationPrinter printer({.json = given_.common.json,
                               .stats = given_.stats,
                               .columns = isatty(STDOUT_FILENO) != 0 ? TerminalSize().columns : 0,
                               .num_samples = request_.sampling().n()});
    interrupt_.SetHandler([this] { connection_.CancelAll(); });
    absl::Status status = Send(printer);
    // The session may have expired, or the server may be a new one, and what it had is not known.
    if (absl::IsNotFound(status) && session_.has_value() && printer.text().empty()) {
      CloseSession();
      status = Send(printer);
    }
    interrupted_ = interrupt_.interrupted();
    interrupt_.ClearHandler();
    if (!status.ok() && !interrupted_) {
      messages_.mutable_messages()->RemoveLast();
      return status;
    }
    printer.Finish();
    AddMessage(&messages_, "assistant", printer.text());
    // A cancelled turn leaves the session as it was: the next turn sends its messages again.
    if (status.ok()) {
      has_answer_ = true;
      num_in_session_ = messages_.messages_size();
      Remember();
    }
    return absl::OkStatus();
  }
  bool interrupted() const { return interrupted_; }

 private:
  absl::Status Send(GenerationPrinter& printer) {
    if (wants_session_ && !session_.has_value()) {
      // A conversation goes on without a session if the server has none to give.
      if (absl::StatusOr<v1::Session> session = CreateSession({}); session.ok()) {
        session_ = *std::move(session);
        is_known_ = true;
      }
    }
    v1::GenerateRequest turn = request_;
    ResumeOptions options = {.tries = given_.resume_tries, .begins_again = has_answer_};
    if (session_.has_value()) {
      // These are the session's.
      turn.clear_prefix_name();
      turn.mutable_cache()->clear_salt();
      turn.set_session_name(session_->name());
      turn.set_session_etag(session_->etag());
      if (is_known_) options.reopen = [this] { return Reopen(); };
    }
    const int first = session_.has_value() ? num_in_session_ : 0;
    for (int i = first; i < messages_.messages_size(); ++i) {
      *turn.mutable_chat()->add_messages() = messages_.messages(i);
    }
    return StreamResuming(
        connection_, turn, options,
        [&](const v1::GenerateStreamResponse& message) { printer.Take(message); });
  }

  // Makes a session with the content of an earlier one, or as a conversation begins.
  absl::StatusOr<v1::Session> CreateSession(const v1::Session& earlier) {
    v1::CreateSessionRequest create;
    create.set_display_name("quire chat");
    create.mutable_ttl()->set_seconds(kSessionSeconds);
    if (request_.has_model()) create.set_model(request_.model());
    if (request_.has_prefix_name()) create.set_prefix_name(request_.prefix_name());
    if (request_.cache().has_salt()) create.set_salt(request_.cache().salt());
    if (earlier.has_content()) *create.mutable_content() = earlier.content();
    v1::Session session;
    RETURN_IF_ERROR(connection_.CreateSession(create, &session));
    return session;
  }

  // Returns a session as the present one was before the turn that runs. This ends the present one.
  absl::StatusOr<v1::Session> Reopen() {
    ASSIGN_OR_RETURN(v1::Session session, CreateSession(*session_));
    EndSession(session_->name());
    session_->set_name(session.name());
    session_->set_etag(session.etag());
    return session;
  }

  // Asks what the session has after a turn.
  void Remember() {
    if (!session_.has_value()) return;
    v1::GetSessionRequest get;
    get.set_name(session_->name());
    get.set_content(true);
    v1::Session session;
    is_known_ = connection_.GetSession(get, &session).ok();
    if (is_known_) {
      *session_ = std::move(session);
    } else {
      // Not every content may be read. The turns go on without a condition.
      session_->clear_etag();
    }
  }

  void EndSession(const std::string& name) {
    v1::CloseSessionRequest close;
    close.set_name(name);
    // If this fails, the session ends by itself.
    connection_.CloseSession(close).IgnoreError();
  }

  void CloseSession() {
    num_in_session_ = 0;
    if (!session_.has_value()) return;
    EndSession(session_->name());
    session_.reset();
  }

  Connection& connection_;
  Interrupt& interrupt_;
  const ChatFlags& given_;
  const v1::GenerateRequest request_;  // as the user gave it, without messages
  const bool wants_session_;
  std::string system_;
  v1::ChatMessages messages_;
  std::optional<v1::Session> session_;  // as it was after the last turn
  bool is_known_ = false;               // all that session_ has, so that it can be made again
  int num_in_session_ = 0;              // the first messages that the session has
  bool has_answer_ = false;             // the server was there before
  bool interrupted_ = false;
};

// Says who answers. Returns an error if nobody does, or if the model cannot chat.
absl::Status Introduce(Connection& connection, const v1::GenerateRequest& request) {
  v1::GetModelInfoRequest query;
  if (request.has_model()) query.set_model(request.model());
  v1::GetModelInfoResponse response;
  const absl::Status status = connection.GetModelInfo(query, &response);
  // A caller may chat who may not ask this, or not at this address.
  if (absl::IsPermissionDenied(status) || absl::IsUnimplemented(status)) return absl::OkStatus();
  RETURN_IF_ERROR(status);
  const v1::ModelInfo& model = response.model();
  if (!model.has_chat_template()) {
    return absl::FailedPreconditionError(
        absl::StrCat(ForTerminal(model.name()),
                     " has no chat template: use quire generate, or start the server with "
                     "--chat_template FILE"));
  }
  std::cerr << ForTerminal(model.name()) << ", a context of " << model.max_model_len()
            << " tokens\n";
  return absl::OkStatus();
}

// Reads questions and commands until the end of standard input.
int Converse(Conversation& conversation, bool interactive) {
  if (interactive) std::cerr << kCommands;
  std::string line;
  std::string question;  // the last one
  while (true) {
    if (interactive) std::cerr << "\n> ";
    if (!std::getline(std::cin, line)) return kExitOk;
    absl::StripAsciiWhitespace(&line);
    if (line.empty()) continue;
    if (line == "/exit") return kExitOk;
    if (line == "/again") line = question;
    if (line == "/reset") {
      conversation.Reset();
    } else if (line.starts_with("/system")) {
      std::string system = line.substr(sizeof("/system") - 1);
      absl::StripAsciiWhitespace(&system);
      conversation.Begin(system);
    } else if (line.starts_with("/")) {
      std::cerr << "unknown command " << line << "\n" << kCommands;
    } else {
      question = line;
      if (const absl::Status status = conversation.Ask(question); !status.ok()) {
        const int exit = Fail(status);
        if (!interactive) return exit;
      }
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
  AddRequestFlags(flags, &request,
                  {"request_id", "session", "best_of", "beam_width", "beam_length_penalty",
                   "beam_early_stopping", "beam_return"});
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
  const bool interactive = !flags.IsSet("prompt") && isatty(STDIN_FILENO) != 0;
  if (interactive) {
    if (const absl::Status status = Introduce(**connection, request); !status.ok()) {
      return Fail(status);
    }
  }
  Conversation conversation(**connection, interrupt, given, std::move(request),
                            /*wants_session=*/!flags.IsSet("prompt"));
  if (!flags.IsSet("prompt")) return Converse(conversation, interactive);
  if (const absl::Status status = conversation.Ask(given.prompt); !status.ok()) return Fail(status);
  return conversation.interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace quire::client
