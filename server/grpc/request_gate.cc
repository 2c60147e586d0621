#include "server/grpc/request_gate.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "server/grpc/rpc_context.h"

namespace quire::server {
namespace {

constexpr std::string_view kOurPackage = "/quire.v1.";
constexpr std::string_view kHealthService = "/grpc.health.v1.Health/";
constexpr std::string_view kReflectionServices = "/grpc.reflection.";

// Returns the quire.v1 RPC that `path` names, or nullopt if `path` names another RPC.
std::optional<Rpc> RpcOf(std::string_view path) {
  if (!path.starts_with(kOurPackage)) return std::nullopt;
  const auto name = std::ranges::find(kRpcNames, path.substr(path.rfind('/') + 1));
  if (name == kRpcNames.end()) return std::nullopt;
  return static_cast<Rpc>(name - kRpcNames.begin());
}

absl::Status Judge(const door::RequestHead& head, const door::Peer& peer,
                   const Identities& identities, bool trusts_place) {
  if (!head.encoding.empty() && head.encoding != "identity") {
    return absl::UnimplementedError(absl::StrFormat(
        "grpc-encoding: want identity, got \"%s\": this server takes no compressed requests",
        head.encoding.substr(0, 32)));
  }
  if (head.path.starts_with(kHealthService)) return absl::OkStatus();
  const auto authorization = head.authorization.empty()
                                 ? std::nullopt
                                 : std::optional<std::string_view>(head.authorization);
  ASSIGN_OR_RETURN(const PrincipalPtr caller,
                   identities.Authenticate(authorization, peer.certificate_name));
  if (!head.path.starts_with(kReflectionServices)) return absl::OkStatus();
  return CheckOperator(trusts_place, *caller);
}

}  // namespace

door::PeerGate MakeRequestGate(const IdentityStore& identities, bool trusts_place,
                               RpcCounters& counters) {
  return
      [&identities, trusts_place, &counters](
          const door::RequestHead& head, const door::Peer& peer) -> std::optional<door::Refusal> {
        const absl::Status status = Judge(head, peer, *identities.Get(), trusts_place);
        if (status.ok()) return std::nullopt;
        if (const auto rpc = RpcOf(head.path)) counters.Count(*rpc, status.code());
        return door::Refusal{.reason = door::Refused::kGate,
                             .code = static_cast<int>(status.code()),
                             .message = std::string(status.message())};
      };
}

}  // namespace quire::server
