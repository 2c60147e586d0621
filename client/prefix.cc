// quire prefix: creates, shows, changes, deletes and warms named prefixes. quire generate --prefix,
// and others, use them.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "google/protobuf/util/time_util.h"

#include "base/status_macros.h"
#include "client/action.h"
#include "client/prompt_flags.h"
#include "client/terminal_text.h"

namespace quire::client {
namespace {

// Returns "READY" for STATE_READY.
std::string StateOf(const v1::Prefix& prefix) {
  return std::string(absl::StripPrefix(v1::Prefix::State_Name(prefix.state()), "STATE_"));
}

std::string DateOf(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

// Returns how long the prefix still lasts, such as "59m30s".
std::string LeftOf(const v1::Prefix& prefix) {
  const absl::Duration left = absl::FromUnixSeconds(prefix.expire_time().seconds()) - absl::Now();
  return absl::FormatDuration(absl::Trunc(left, absl::Seconds(1)));
}

std::string Describe(const v1::Prefix& prefix) {
  std::string out = absl::StrCat(ForTerminal(prefix.name()), "\n");
  const auto line = [&](std::string_view title, std::string_view text) {
    absl::StrAppendFormat(&out, "  %-13s %s\n", title, text);
  };
  if (!prefix.display_name().empty()) line("display name", ForTerminal(prefix.display_name()));
  line("state", StateOf(prefix));
  if (!prefix.error().empty()) line("error", ForTerminal(prefix.error()));
  if (!prefix.tenant().empty()) line("tenant", ForTerminal(prefix.tenant()));
  line("tokens",
       absl::StrFormat("%d, in %d blocks of the cache (%.1f MiB)", prefix.num_tokens(),
                       prefix.num_blocks(), static_cast<double>(prefix.kv_bytes()) / (1 << 20)));
  if (!prefix.content_sha256().empty()) {
    line("content", absl::BytesToHexString(prefix.content_sha256()));
  }
  line("expires", absl::StrFormat("%s, in %s%s", DateOf(prefix.expire_time()), LeftOf(prefix),
                                  prefix.refresh_on_hit() ? "; each use moves this" : ""));
  for (const std::string& tenant : prefix.allowed_tenants()) line("allowed", ForTerminal(tenant));
  if (prefix.has_hits()) {
    std::string last;
    if (prefix.has_last_hit_time())
      last = absl::StrCat(", the last at ", DateOf(prefix.last_hit_time()));
    line("uses", absl::StrFormat("%d, which did not compute %d tokens%s", prefix.hits(),
                                 prefix.saved_tokens(), last));
  }
  line("etag", ForTerminal(prefix.etag()));
  return out;
}

constexpr char kFormat[] = "%-35s %-9s %8s %7s %12s  %-16s %s\n";

std::string Title() {
  return absl::StrFormat(kFormat, "PREFIX", "STATE", "TOKENS", "BLOCKS", "EXPIRES IN", "TENANT",
                         "NAME");
}

std::string Line(const v1::Prefix& prefix) {
  return absl::StrFormat(kFormat, ForTerminal(prefix.name()), StateOf(prefix),
                         absl::StrCat(prefix.num_tokens()), absl::StrCat(prefix.num_blocks()),
                         LeftOf(prefix),
                         prefix.tenant().empty() ? "(all callers)" : ForTerminal(prefix.tenant()),
                         ForTerminal(prefix.display_name()));
}

void Show(const v1::Prefix& prefix, bool json) {
  Print(json ? ToJsonLine(prefix) : Describe(prefix));
}

// The flags of what an owner may set, when a prefix is created and later.
struct Settings {
  std::optional<std::string> display_name;
  google::protobuf::Duration ttl;
  std::string expire_time;
  std::optional<bool> refresh_on_hit;
  std::vector<std::string> allowed;
};

void AddSettings(Action& action, Settings* settings) {
  base::FlagSet& flags = action.flags();
  flags.Add("display_name", "TEXT", "name for people, at most 128 bytes", &settings->display_name);
  action.AddTtl("keep the prefix this long, at least 60s, e.g. 30m (default of create: 1h)",
                &settings->ttl);
  flags.Add("expire_time", "DATE", "keep the prefix until then, e.g. 2030-01-31T18:00:00Z",
            &settings->expire_time);
  flags.AddSwitch("refresh_on_hit", "each use keeps the prefix for its ttl from then",
                  base::SetterOf(&settings->refresh_on_hit));
  flags.Add("allow", "TENANT", "tenant that may use the prefix too; * is every tenant; repeatable",
            &settings->allowed);
}

// Sets the fields of `out`, a v1::CreatePrefixRequest or v1::Prefix, whose flags were given.
template <typename Message>
absl::Status Set(const base::FlagSet& flags, const Settings& settings, Message* out) {
  if (flags.IsSet("ttl") && flags.IsSet("expire_time")) {
    return absl::InvalidArgumentError("give one of --ttl and --expire_time");
  }
  if (settings.display_name.has_value()) out->set_display_name(*settings.display_name);
  if (flags.IsSet("ttl")) *out->mutable_ttl() = settings.ttl;
  if (flags.IsSet("expire_time") && !google::protobuf::util::TimeUtil::FromString(
                                        settings.expire_time, out->mutable_expire_time())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--expire_time: want a date such as 2030-01-31T18:00:00Z, got \"%s\"",
                        settings.expire_time));
  }
  if (settings.refresh_on_hit.has_value()) out->set_refresh_on_hit(*settings.refresh_on_hit);
  out->mutable_allowed_tenants()->Assign(settings.allowed.begin(), settings.allowed.end());
  return absl::OkStatus();
}

int RunCreate(const Args& args, Interrupt& interrupt) {
  v1::CreatePrefixRequest request;
  PromptFlags prompt;
  Settings settings;
  std::optional<bool> wait;
  Action action("quire prefix create --prompt TEXT [flags]",
                "Computes the start of prompts, keeps it in the server's memory, and shows its "
                "name. Requests that name it continue it.");
  AddPromptFlags(action.flags(), &prompt);
  action.flags().AddHabits("prompt", {"text"});
  action.flags().AddHabits("chat_file", {"messages"});
  action.flags().Section("Prefix");
  AddSettings(action, &settings);
  action.AddText("salt", "prompts without --prefix share its tokens only with this cache_salt",
                 [&](std::string text) { request.set_salt(std::move(text)); });
  action.AddText("model", "name of the model (default: the served one)",
                 [&](std::string text) { request.set_model(std::move(text)); });
  action.AddText("request_id", "the same id gives the same prefix again, for an hour",
                 [&](std::string text) { request.set_request_id(std::move(text)); });
  action.flags().AddSwitch("wait", "=false: do not wait until it is computed (default true)",
                           base::SetterOf(&wait));
  const auto check = [&]() -> absl::Status {
    RETURN_IF_ERROR(SetPrompt(action.flags(), prompt, &request));
    return Set(action.flags(), settings, &request);
  };
  return action.Run(args, interrupt, check, [&](Connection& connection) -> absl::Status {
    if (wait.has_value()) request.set_wait(*wait);
    v1::Prefix prefix;
    RETURN_IF_ERROR(connection.CreatePrefix(request, &prefix));
    // The name alone, so that a script can take it.
    Print(action.json() ? ToJsonLine(prefix) : ForTerminal(prefix.name()) + "\n");
    return absl::OkStatus();
  });
}

int RunGet(const Args& args, Interrupt& interrupt) {
  v1::GetPrefixRequest request;
  Action action("quire prefix get PREFIX [flags]", "Shows a prefix.");
  action.AddName("prefix", request.mutable_name());
  return action.Run(args, interrupt, [&](Connection& connection) -> absl::Status {
    v1::Prefix prefix;
    RETURN_IF_ERROR(connection.GetPrefix(request, &prefix));
    Show(prefix, action.json());
    return absl::OkStatus();
  });
}

int RunList(const Args& args, Interrupt& interrupt) {
  v1::ListPrefixesRequest request;
  Action action("quire prefix list [flags]", "Shows the prefixes that the caller may use.");
  action.flags().Section("Prefixes");
  action.AddText("tenant", "only those of this tenant (default: all that the caller may use)",
                 [&](std::string text) { request.set_tenant(std::move(text)); });
  return action.Run(args, interrupt, [&](Connection& connection) -> absl::Status {
    if (!action.json()) Print(Title());
    do {
      v1::ListPrefixesResponse page;
      RETURN_IF_ERROR(connection.ListPrefixes(request, &page));
      for (const v1::Prefix& prefix : page.prefixes()) {
        Print(action.json() ? ToJsonLine(prefix) : Line(prefix));
      }
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return absl::OkStatus();
  });
}

int RunUpdate(const Args& args, Interrupt& interrupt) {
  v1::UpdatePrefixRequest request;
  v1::Prefix& changed = *request.mutable_prefix();
  Settings settings;
  bool allow_nobody = false;
  Action action("quire prefix update PREFIX [flags]",
                "Changes what flags are given for, and shows the prefix.");
  action.AddName("prefix", changed.mutable_name());
  action.flags().Section("Changes");
  AddSettings(action, &settings);
  action.flags().AddSwitch("allow_nobody", "only the owner may use the prefix", &allow_nobody);
  action.AddText("etag", "change the prefix only if it has this etag",
                 [&](std::string text) { changed.set_etag(std::move(text)); });
  const auto check = [&]() -> absl::Status {
    if (allow_nobody && action.flags().IsSet("allow")) {
      return absl::InvalidArgumentError("give one of --allow and --allow_nobody");
    }
    RETURN_IF_ERROR(Set(action.flags(), settings, &changed));
    const auto name = [&](bool is_changed, const char* path) {
      if (is_changed) request.mutable_update_mask()->add_paths(path);
    };
    for (const char* const flag : {"display_name", "ttl", "expire_time", "refresh_on_hit"}) {
      name(action.flags().IsSet(flag), flag);
    }
    name(allow_nobody || action.flags().IsSet("allow"), "allowed_tenants");
    if (request.update_mask().paths().empty()) {
      return absl::InvalidArgumentError(
          "give at least one of --display_name, --ttl, --expire_time, --refresh_on_hit, --allow, "
          "--allow_nobody");
    }
    return absl::OkStatus();
  };
  return action.Run(args, interrupt, check, [&](Connection& connection) -> absl::Status {
    v1::Prefix prefix;
    RETURN_IF_ERROR(connection.UpdatePrefix(request, &prefix));
    Show(prefix, action.json());
    return absl::OkStatus();
  });
}

int RunDelete(const Args& args, Interrupt& interrupt) {
  v1::DeletePrefixRequest request;
  bool allow_missing = false;
  Action action("quire prefix delete PREFIX [flags]",
                "Deletes a prefix. Requests that run on it continue.");
  action.AddName("prefix", request.mutable_name());
  action.flags().Section("Deletion");
  action.flags().AddSwitch("allow_missing", "it is no error if there is no such prefix",
                           &allow_missing);
  action.AddText("etag", "delete the prefix only if it has this etag",
                 [&](std::string text) { request.set_etag(std::move(text)); });
  return action.Run(args, interrupt, [&](Connection& connection) {
    request.set_allow_missing(allow_missing);
    return connection.DeletePrefix(request);
  });
}

int RunWarm(const Args& args, Interrupt& interrupt) {
  v1::WarmPrefixRequest request;
  Action action("quire prefix warm PREFIX [flags]",
                "Waits until a prefix is in the server's memory, and shows it.");
  action.AddName("prefix", request.mutable_name());
  return action.Run(args, interrupt, [&](Connection& connection) -> absl::Status {
    v1::Prefix prefix;
    RETURN_IF_ERROR(connection.WarmPrefix(request, &prefix));
    Show(prefix, action.json());
    return absl::OkStatus();
  });
}

constexpr NamedAction kActions[] = {{"create", RunCreate}, {"get", RunGet},
                                    {"list", RunList},     {"update", RunUpdate},
                                    {"delete", RunDelete}, {"warm", RunWarm}};

constexpr char kUsage[] =
    "usage: quire prefix create|get|list|update|delete|warm [flags]\n\n"
    "A prefix is the start of prompts, whose tokens the server keeps. A prompt that follows it:\n"
    "  quire generate --prefix PREFIX --prompt TEXT\n"
    "quire prefix create --help, and so on, show the flags, such as --server.\n";

}  // namespace

int RunPrefix(const Args& args, Interrupt& interrupt) {
  return RunAction(kActions, kUsage, args, interrupt);
}

}  // namespace quire::client
