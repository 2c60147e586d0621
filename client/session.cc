// quire session: creates, shows, extends, forks and closes sessions. Their turns are those of quire
// generate --session.

#include <algorithm>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "client/command.h"
#include "client/prompt_flags.h"

namespace quire::client {
namespace {

std::string Title() {
  return absl::StrFormat("%-35s %8s %6s %7s  %s\n", "SESSION", "TOKENS", "TURNS", "EXPIRES",
                         "NAME");
}

std::string Line(const v1::Session& session) {
  const absl::Time expires = absl::FromUnixSeconds(session.expire_time().seconds());
  const std::string left =
      session.in_turn()
          ? "in turn"
          : absl::FormatDuration(absl::Trunc(expires - absl::Now(), absl::Seconds(1)));
  return absl::StrFormat("%-35s %8d %6d %7s  %s\n", session.name(), session.num_tokens(),
                         session.num_turns(), left, session.display_name());
}

void Show(const v1::Session& session, bool json) {
  Print(json ? ToJsonLine(session) : Title() + Line(session));
}

// One of the commands of quire session, from its flags to its output.
class Action {
 public:
  Action(std::string usage, std::string summary) : flags_(std::move(usage), std::move(summary)) {}

  base::FlagSet& flags() { return flags_; }
  CommonFlags& common() { return common_; }
  bool json() const { return common_.json; }

  // Adds the operand that every command but create and list has.
  void AddName(std::string* name) {
    flags_.AddOperand("SESSION", "name of the session, \"sessions/...\"", name);
    needs_name_ = true;
  }
  void AddTtl(google::protobuf::Duration* ttl, const char* help) {
    flags_.Add("ttl", "TIME", help, [ttl](std::string_view text) -> absl::Status {
      absl::Duration value;
      RETURN_IF_ERROR(base::ParseValue(text, &value));
      ttl->set_seconds(absl::IDivDuration(value, absl::Seconds(1), &value));
      ttl->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(value)));
      return absl::OkStatus();
    });
  }

  // Parses the flags, calls `check`, connects, and calls `run`.
  int Run(const Args& args, Interrupt& interrupt, const std::function<absl::Status()>& check,
          const std::function<absl::Status(Connection&)>& run) {
    AddCommonFlags(flags_, &common_);
    if (const auto exit = ParseFlags(flags_, args)) return *exit;
    absl::Status status = check();
    if (status.ok() && needs_name_ && flags_.num_operands() != 1) {
      status = absl::InvalidArgumentError("give the name of a session");
    }
    if (!status.ok()) return FailUsage(flags_, status);
    const auto connection = Connect(common_, interrupt);
    if (!connection.ok()) return FailUsage(flags_, connection.status());
    return Finish(run(**connection), interrupt);
  }
  int Run(const Args& args, Interrupt& interrupt,
          const std::function<absl::Status(Connection&)>& run) {
    return Run(args, interrupt, absl::OkStatus, run);
  }

 private:
  base::FlagSet flags_;
  CommonFlags common_;
  bool needs_name_ = false;
};

// Adds a flag that sets a string field if it is given.
void AddText(base::FlagSet& flags, const char* flag, const char* help,
             std::function<void(std::string)> set) {
  flags.Add(flag, "TEXT", help, [set = std::move(set)](std::string_view text) {
    set(std::string(text));
    return absl::OkStatus();
  });
}

int RunCreate(const Args& args, Interrupt& interrupt) {
  v1::CreateSessionRequest request;
  Action action("quire session create [flags]", "Creates an empty session and shows its name.");
  action.flags().Section("Session");
  AddText(action.flags(), "display_name", "name for people",
          [&](std::string text) { request.set_display_name(std::move(text)); });
  AddText(action.flags(), "model", "name of the model (default: the served one)",
          [&](std::string text) { request.set_model(std::move(text)); });
  AddText(action.flags(), "cache_salt",
          "share cached prefixes only with requests that have this salt",
          [&](std::string text) { request.set_salt(std::move(text)); });
  AddText(action.flags(), "request_id", "the same id gives the same session again",
          [&](std::string text) { request.set_request_id(std::move(text)); });
  google::protobuf::Duration ttl;
  action.AddTtl(&ttl, "end the session after this time without a turn, 10s..24h (default 10m)");
  return action.Run(args, interrupt, [&](Connection& connection) -> absl::Status {
    if (action.flags().IsSet("ttl")) *request.mutable_ttl() = ttl;
    v1::Session session;
    RETURN_IF_ERROR(connection.CreateSession(request, &session));
    // The name alone, so that a script can take it.
    Print(action.json() ? ToJsonLine(session) : session.name() + "\n");
    return absl::OkStatus();
  });
}

int RunGet(const Args& args, Interrupt& interrupt) {
  v1::GetSessionRequest request;
  Action action("quire session get SESSION [flags]", "Shows a session.");
  action.AddName(request.mutable_name());
  return action.Run(args, interrupt, [&](Connection& connection) -> absl::Status {
    v1::Session session;
    RETURN_IF_ERROR(connection.GetSession(request, &session));
    Show(session, action.json());
    return absl::OkStatus();
  });
}

int RunList(const Args& args, Interrupt& interrupt) {
  v1::ListSessionsRequest request;
  Action action("quire session list [flags]", "Shows the sessions of a tenant.");
  action.flags().Section("Sessions");
  AddText(action.flags(), "tenant", "of this tenant; for operators (default: the caller's)",
          [&](std::string text) { request.set_tenant(std::move(text)); });
  return action.Run(args, interrupt, [&](Connection& connection) -> absl::Status {
    if (!action.json()) Print(Title());
    do {
      v1::ListSessionsResponse page;
      RETURN_IF_ERROR(connection.ListSessions(request, &page));
      for (const v1::Session& session : page.sessions()) {
        Print(action.json() ? ToJsonLine(session) : Line(session));
      }
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return absl::OkStatus();
  });
}

int RunAppend(const Args& args, Interrupt& interrupt) {
  v1::AppendToSessionRequest request;
  PromptFlags prompt;
  bool compute = false;
  Action action("quire session append SESSION --prompt TEXT [flags]",
                "Adds tokens to a session, without generating any.");
  action.AddName(request.mutable_name());
  AddPromptFlags(action.flags(), &prompt);
  action.flags().Section("Append");
  action.flags().AddSwitch("compute", "compute the tokens now, not with the next turn", &compute);
  AddText(action.flags(), "etag", "append only if the session has this etag",
          [&](std::string text) { request.set_etag(std::move(text)); });
  AddText(action.flags(), "request_id", "the same id appends only once",
          [&](std::string text) { request.set_request_id(std::move(text)); });
  const auto check = [&] { return SetPrompt(action.flags(), prompt, &request); };
  return action.Run(args, interrupt, check, [&](Connection& connection) -> absl::Status {
    request.set_compute(compute);
    v1::AppendToSessionResponse response;
    RETURN_IF_ERROR(connection.AppendToSession(request, &response));
    if (action.json()) {
      Print(ToJsonLine(response));
    } else {
      Show(response.session(), false);
    }
    return absl::OkStatus();
  });
}

int RunFork(const Args& args, Interrupt& interrupt) {
  v1::ForkSessionRequest request;
  std::optional<uint64_t> at_token, count;
  Action action("quire session fork SESSION [flags]",
                "Makes sessions that begin with the tokens of a session, and shows their names.");
  action.AddName(request.mutable_name());
  action.flags().Section("Fork");
  action.flags().Add("at_token", "N", "begin with the first N tokens (default: all)", &at_token);
  action.flags().Add("count", "K", "make K sessions, 1..64 (default 1)", &count);
  google::protobuf::Duration ttl;
  action.AddTtl(&ttl, "ttl of the new sessions (default: that of the session)");
  AddText(action.flags(), "request_id", "the same id gives the same sessions again",
          [&](std::string text) { request.set_request_id(std::move(text)); });
  // A number that the field cannot hold is as wrong as the field's largest one.
  const auto clamp = [](uint64_t value) {
    return static_cast<uint32_t>(std::min<uint64_t>(value, std::numeric_limits<uint32_t>::max()));
  };
  return action.Run(args, interrupt, [&](Connection& connection) -> absl::Status {
    if (at_token.has_value()) request.set_at_token(clamp(*at_token));
    if (count.has_value()) request.set_count(clamp(*count));
    if (action.flags().IsSet("ttl")) *request.mutable_ttl() = ttl;
    v1::ForkSessionResponse response;
    RETURN_IF_ERROR(connection.ForkSession(request, &response));
    for (const v1::Session& session : response.sessions()) {
      Print(action.json() ? ToJsonLine(session) : session.name() + "\n");
    }
    return absl::OkStatus();
  });
}

int RunClose(const Args& args, Interrupt& interrupt) {
  v1::CloseSessionRequest request;
  Action action("quire session close SESSION [flags]",
                "Ends a session and cancels its turn. It is no error if the session has ended.");
  action.AddName(request.mutable_name());
  return action.Run(args, interrupt,
                    [&](Connection& connection) { return connection.CloseSession(request); });
}

constexpr struct {
  std::string_view name;
  int (*run)(const Args& args, Interrupt& interrupt);
} kActions[] = {{"create", RunCreate}, {"get", RunGet},   {"list", RunList},
                {"append", RunAppend}, {"fork", RunFork}, {"close", RunClose}};

constexpr char kUsage[] =
    "usage: quire session create|get|list|append|fork|close [flags]\n\n"
    "Sessions are conversations whose tokens the server keeps. A turn of one is\n"
    "  quire generate --session SESSION --prompt TEXT\n"
    "quire session create --help, and so on, show the flags, such as --server.\n";

}  // namespace

int RunSession(const Args& args, Interrupt& interrupt) {
  const std::string name = args.empty() ? "" : args[0];
  if (name == "--help" || name == "-h" || name == "help") {
    Print(kUsage);
    return kExitOk;
  }
  const auto action = std::ranges::find(kActions, name, [](const auto& a) { return a.name; });
  if (action == std::end(kActions)) {
    std::cerr << kUsage;
    return kExitUsage;
  }
  return action->run(Args(args.begin() + 1, args.end()), interrupt);
}

}  // namespace quire::client
