#include "server/door/door.h"

#include <algorithm>
#include <utility>

#include <sys/resource.h>

#include "base/status_macros.h"
#include "server/door/tls.h"

namespace quire::server::door {
namespace {

constexpr size_t kDescriptorsOfTheRest = 64;  // model files, logs, epoll sets, the admin server
constexpr size_t kDescriptorsEach = 3;        // one for the client, two for the local connection
// The default for max_connections is at most this number. A connection with TLS takes about 32 KiB,
// so 4096 connections take about 128 MiB.
constexpr size_t kMostConnections = 4096;

size_t DescriptorLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

size_t MaxConnections(const DoorOptions& options) {
  if (options.max_connections > 0) return options.max_connections;
  const size_t limit = std::max(DescriptorLimit(), kDescriptorsOfTheRest + kDescriptorsEach);
  return std::min((limit - kDescriptorsOfTheRest) / kDescriptorsEach, kMostConnections);
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> TlsContextOrNull(const TlsFiles& tls) {
  if (!tls.enabled()) return nullptr;
  return MakeTlsContext(tls);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Door>> Door::Open(ListenAddress address, const TlsFiles& tls,
                                                 const DoorOptions& options, PeerGate gate,
                                                 HandOver hand_over, PeerDirectory& peers,
                                                 DoorCounters& counters) {
  ASSIGN_OR_RETURN(std::shared_ptr<SSL_CTX> context, TlsContextOrNull(tls));
  ASSIGN_OR_RETURN(std::vector<base::UniqueFd> listeners, Listen(address));
  std::unique_ptr<Door> door(new Door(std::move(address), options));
  door->relay_ = std::make_unique<Relay>(door->http2_, peers, counters);
  door->greeter_ = std::make_unique<Greeter>(
      std::move(listeners), options.handshake_time, std::move(context), std::move(gate),
      std::move(hand_over), door->places_, peers, *door->relay_, counters);
  return door;
}

Door::Door(ListenAddress address, const DoorOptions& options)
    : address_(std::move(address)),
      http2_(options.http2),
      places_(MaxConnections(options), options.max_per_address) {}

Door::~Door() {
  StopAccepting();
  Close();
}

absl::Status Door::SetTls(const TlsFiles& tls) {
  ASSIGN_OR_RETURN(std::shared_ptr<SSL_CTX> context, TlsContextOrNull(tls));
  greeter_->SetTls(context);
  relay_->SetTls(std::move(context));
  return absl::OkStatus();
}

void Door::ExpectSelfCall(uint16_t port) { greeter_->ExpectSelfCall(port); }

void Door::StopAccepting() { greeter_->Stop(); }

void Door::Close() { relay_->Stop(); }

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace quire::server::door
