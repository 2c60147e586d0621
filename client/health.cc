// quire health: has exit status 0 when the server takes requests. Containers use it as a probe.

#include <cstdlib>

#include "absl/strings/str_cat.h"

#include "client/admin_probe.h"
#include "client/command.h"

namespace quire::client {
namespace {

// Returns the address of the admin port to ask, or "" when gRPC must be used instead.
std::string AdminAddress(const base::FlagSet& flags, const std::string& admin) {
  if (flags.IsSet("admin")) return admin;
  if (flags.IsSet("server") || flags.IsSet("service")) return "";
  const char* from_environment = std::getenv("QUIRE_ADMIN_LISTEN");
  return from_environment == nullptr ? "" : from_environment;
}

absl::StatusOr<std::string> AskAdmin(const std::string& address, const CommonFlags& common) {
  const auto ready = AskReady(address, common.connection.timeout.value_or(kUnaryTimeout));
  if (!ready.ok()) return ready.status();
  return *ready ? "SERVING" : "NOT_SERVING";
}

}  // namespace

int RunHealth(const Args& args, Interrupt& interrupt) {
  CommonFlags common;
  std::string service, admin;
  base::FlagSet flags(
      "quire health [flags]",
      "Asks whether the server takes requests. Exits with 0 when it is SERVING. The question is "
      "sent by gRPC (grpc.health.v1), or to the admin port, which needs no certificate.");
  flags.Section("Question");
  flags.Add("service", "NAME",
            "ask about one service, e.g. quire.v1.InferenceService (default: the whole server)",
            &service);
  flags.Add(
      "admin", "HOST:PORT",
      "ask the server's --admin_listen by GET /readyz (default, without --server and --service: "
      "the environment variable QUIRE_ADMIN_LISTEN)",
      &admin);
  AddCommonFlags(flags, &common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  if (flags.IsSet("admin") && (flags.IsSet("server") || flags.IsSet("service"))) {
    return FailUsage(flags,
                     absl::InvalidArgumentError(
                         "--admin: want it without --server and --service, which gRPC answers"));
  }
  absl::StatusOr<std::string> health;
  if (const std::string address = AdminAddress(flags, admin); !address.empty()) {
    health = AskAdmin(address, common);
  } else {
    const auto connection = Connect(common, interrupt);
    if (!connection.ok()) return FailUsage(flags, connection.status());
    health = (*connection)->CheckHealth(service);
    interrupt.ClearHandler();
  }
  if (!health.ok()) return Fail(health.status());
  Print(common.json ? absl::StrCat("{\"status\":\"", *health, "\"}\n")
                    : absl::StrCat(*health, "\n"));
  return *health == "SERVING" ? kExitOk : kExitFailed;
}

}  // namespace quire::client
