// quire health: exit status 0 when the server takes requests. The container's probe.

#include "absl/strings/str_cat.h"

#include "client/command.h"

namespace quire::client {

int RunHealth(const Args& args, Interrupt& interrupt) {
  CommonFlags common;
  std::string service;
  FlagSet flags(
      "quire health [flags]",
      "Asks whether the server takes requests (grpc.health.v1); succeeds when it is SERVING.");
  flags.Section("What");
  flags.Add("service", "NAME",
            "one service, e.g. quire.v1.InferenceService (default: the server as a whole)",
            &service);
  AddCommonFlags(flags, &common);
  if (const auto exit = ParseFlags(flags, args)) return *exit;
  const auto connection = Connect(common, interrupt);
  if (!connection.ok()) return FailUsage(flags, connection.status());
  const absl::StatusOr<std::string> health = (*connection)->CheckHealth(service);
  interrupt.ClearHandler();
  if (!health.ok()) return Fail(health.status());
  Print(common.json ? absl::StrCat("{\"status\":\"", *health, "\"}\n")
                    : absl::StrCat(*health, "\n"));
  return *health == "SERVING" ? kExitOk : kExitFailed;
}

}  // namespace quire::client
