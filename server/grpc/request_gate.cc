#include "server/grpc/request_gate.h"

#include <memory>
#include <optional>
#include <string_view>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "server/identity/grant.h"

namespace quire::server {
namespace {

constexpr std::string_view kHealthService = "/grpc.health.v1.Health/";
constexpr std::string_view kReflectionServices = "/grpc.reflection.";

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
  ASSIGN_OR_RETURN(const std::shared_ptr<const Principal> caller,
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
        if (const auto rpc = FindRpc(head.path)) counters.Count(*rpc, status.code());
        return door::Refusal{.reason = door::Refused::kGate,
                             .code = static_cast<int>(status.code()),
                             .message = std::string(status.message())};
      };
}

}  // namespace quire::server
