// quire session: creates, shows, extends, forks and closes sessions. Their turns are those of quire
// generate --session.

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "google/protobuf/util/json_util.h"

#include "base/status_macros.h"
#include "client/action.h"
#include "client/prompt_flags.h"
#include "client/terminal_text.h"

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
  return absl::StrFormat("%-35s %8d %6d %7s  %s\n", ForTerminal(session.name()),
                         session.num_tokens(), session.num_turns(), left,
                         ForTerminal(session.display_name()));
}

void Show(const v1::Session& session, bool json) {
  Print(json ? ToJsonLine(session) : Title() + Line(session));
}

int RunCreate(const Args& args, Interrupt& interrupt) {
  v1::CreateSessionRequest request;
  Action action("quire session create [flags]", "Creates a session and shows its name.");
  action.flags().Section("Session");
  action.AddText("display_name", "name for people",
                 [&](std::string text) { request.set_display_name(std::move(text)); });
  action.AddText("prefix", "begin with the tokens of this named prefix",
                 [&](std::string text) { request.set_prefix_name(std::move(text)); });
  bool pinned = false;
  action.flags().AddSwitch("pinned", "keep the session in the server's memory between its turns",
                           &pinned);
  action.AddText("model", "name of the model (default: the served one)",
                 [&](std::string text) { request.set_model(std::move(text)); });
  action.AddText("cache_salt", "share cached prefixes only with requests that have this salt",
                 [&](std::string text) { request.set_salt(std::move(text)); });
  action.AddText("request_id", "the same id gives the same session again",
                 [&](std::string text) { request.set_request_id(std::move(text)); });
  std::string content_file;
  action.AddText("content", "begin with what \"quire session get --content\" printed to this file",
                 [&](std::string file) { content_file = std::move(file); });
  google::protobuf::Duration ttl;
  action.AddTtl("end the session after this time without a turn, 10s..24h (default 10m)", &ttl);
  const auto read_content = [&]() -> absl::Status {
    if (content_file.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(content_file));
    const auto parsed =
        google::protobuf::util::JsonStringToMessage(text, request.mutable_content());
    if (parsed.ok()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--content: ", parsed.ToString()));
  };
  return action.Run(args, interrupt, read_content, [&](Connection& connection) -> absl::Status {
    if (action.flags().IsSet("ttl")) *request.mutable_ttl() = ttl;
    if (pinned) request.set_pinned(true);
    v1::Session session;
    RETURN_IF_ERROR(connection.CreateSession(request, &session));
    // The name alone, so that a script can take it.
    Print(action.json() ? ToJsonLine(session) : ForTerminal(session.name()) + "\n");
    return absl::OkStatus();
  });
}

int RunGet(const Args& args, Interrupt& interrupt) {
  v1::GetSessionRequest request;
  Action action("quire session get SESSION [flags]", "Shows a session.");
  action.AddName("session", request.mutable_name());
  action.flags().Section("Session");
  bool content = false;
  action.flags().AddSwitch(
      "content", "show only what the session has, as JSON for session create --content", &content);
  return action.Run(args, interrupt, [&](Connection& connection) -> absl::Status {
    if (content) request.set_content(true);
    v1::Session session;
    RETURN_IF_ERROR(connection.GetSession(request, &session));
    if (content) {
      Print(ToJsonLine(session.content()));
    } else {
      Show(session, action.json());
    }
    return absl::OkStatus();
  });
}

int RunList(const Args& args, Interrupt& interrupt) {
  v1::ListSessionsRequest request;
  Action action("quire session list [flags]", "Shows the sessions of a tenant.");
  action.flags().Section("Sessions");
  action.AddText("tenant", "of this tenant; for operators (default: the caller's)",
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
  action.AddName("session", request.mutable_name());
  AddPromptFlags(action.flags(), &prompt);
  action.flags().Section("Append");
  action.flags().AddSwitch("compute", "compute the tokens now, not with the next turn", &compute);
  action.AddText("etag", "append only if the session has this etag",
                 [&](std::string text) { request.set_etag(std::move(text)); });
  action.AddText("request_id", "the same id appends only once",
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
  action.AddName("session", request.mutable_name());
  action.flags().Section("Fork");
  action.flags().Add("at_token", "N", "begin with the first N tokens (default: all)", &at_token);
  action.flags().Add("count", "K", "make K sessions, 1..64 (default 1)", &count);
  google::protobuf::Duration ttl;
  action.AddTtl("ttl of the new sessions (default: that of the session)", &ttl);
  bool pinned = false;
  action.flags().AddSwitch(
      "pinned", "keep the new sessions in the server's memory (default: as the session)", &pinned);
  action.AddText("request_id", "the same id gives the same sessions again",
                 [&](std::string text) { request.set_request_id(std::move(text)); });
  return action.Run(args, interrupt, [&](Connection& connection) -> absl::Status {
    if (at_token.has_value()) request.set_at_token(Clamped(*at_token));
    if (count.has_value()) request.set_count(Clamped(*count));
    if (action.flags().IsSet("ttl")) *request.mutable_ttl() = ttl;
    if (action.flags().IsSet("pinned")) request.set_pinned(pinned);
    v1::ForkSessionResponse response;
    RETURN_IF_ERROR(connection.ForkSession(request, &response));
    for (const v1::Session& session : response.sessions()) {
      Print(action.json() ? ToJsonLine(session) : ForTerminal(session.name()) + "\n");
    }
    return absl::OkStatus();
  });
}

int RunClose(const Args& args, Interrupt& interrupt) {
  v1::CloseSessionRequest request;
  Action action("quire session close SESSION [flags]",
                "Ends a session and cancels its turn. It is no error if the session has ended.");
  action.AddName("session", request.mutable_name());
  return action.Run(args, interrupt,
                    [&](Connection& connection) { return connection.CloseSession(request); });
}

constexpr NamedAction kActions[] = {{"create", RunCreate}, {"get", RunGet},   {"list", RunList},
                                    {"append", RunAppend}, {"fork", RunFork}, {"close", RunClose}};

constexpr char kUsage[] =
    "usage: quire session create|get|list|append|fork|close [flags]\n\n"
    "Sessions are conversations whose tokens the server keeps. A turn of one is\n"
    "  quire generate --session SESSION --prompt TEXT\n"
    "quire session create --help, and so on, show the flags, such as --server.\n";

}  // namespace

int RunSession(const Args& args, Interrupt& interrupt) {
  return RunAction(kActions, kUsage, args, interrupt);
}

}  // namespace quire::client
