#pragma once

// The door's first thread: accepts connections, does the TLS handshake, waits for HTTP/2's first
// frame, and hands the connection over. A client that is too slow is disconnected. Handshakes run
// on this thread so that they delay no token.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <openssl/types.h>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "server/door/acceptor.h"
#include "server/door/client_socket.h"
#include "server/door/door_counters.h"
#include "server/door/epoll.h"
#include "server/door/http2_watch.h"
#include "server/door/peer_directory.h"
#include "server/door/places.h"
#include "server/door/relay.h"
#include "server/door/self_calls.h"

namespace quire::server::door {

// Judges the headers of each request. Its client's certificate and address are known by then.
using PeerGate = std::function<std::optional<Refusal>(const RequestHead&, const Peer&)>;
// Gives gRPC its end of a local connection.
using HandOver = std::function<void(base::UniqueFd)>;

// SetTls and ExpectSelfCall are thread-safe; the other methods are for the thread that owns it.
class Greeter {
 public:
  // All references are borrowed. A null `tls` means plain text. `handshake_time` runs from accept
  // to HTTP/2's first frame.
  Greeter(std::vector<base::UniqueFd> listeners, std::chrono::milliseconds handshake_time,
          std::shared_ptr<SSL_CTX> tls, PeerGate gate, HandOver hand_over, Places& places,
          PeerDirectory& peers, Relay& relay, DoorCounters& counters);
  ~Greeter();  // Stop()
  Greeter(const Greeter&) = delete;
  Greeter& operator=(const Greeter&) = delete;

  // Sets the context of new connections.
  void SetTls(std::shared_ptr<SSL_CTX> tls);
  // See SelfCalls.
  void ExpectSelfCall(uint16_t port) { self_calls_.Expect(port); }
  // Stops listening. When this returns, no more connections are handed over.
  void Stop();

 private:
  struct Newcomer;

  void Run();
  void ListenOrRest();
  void Accept(int listener);
  // Gives the client a place or turns it away; false when it must wait until another makes room.
  bool LetIn(AcceptedClient& client);
  void TryLobby();
  void Greet(Newcomer& newcomer);
  // False while more bytes are needed.
  bool ReadHello(Newcomer& newcomer);
  void Welcome(Newcomer& newcomer);
  void TurnAway(Newcomer& newcomer, Turned why);
  void Forget(Newcomer& newcomer);

  const std::vector<base::UniqueFd> listeners_;
  const std::chrono::milliseconds handshake_time_;
  const PeerGate gate_;
  const HandOver hand_over_;
  Places& places_;
  PeerDirectory& peers_;
  Relay& relay_;
  DoorCounters& counters_;
  Acceptor acceptor_;
  SelfCalls self_calls_;
  Epoll epoll_;
  std::atomic<bool> stop_ = false;

  base::Mutex mu_;
  std::shared_ptr<SSL_CTX> tls_ ABSL_GUARDED_BY(mu_);

  // Used by the thread only.
  std::list<Newcomer> newcomers_;  // ordered by deadline
  std::list<Newcomer> gone_;       // kept until the events of this turn are handled
  // A client that came when the server was full, and how often a place may still be tried for it.
  // No other is accepted meanwhile.
  std::optional<AcceptedClient> lobby_;
  int lobby_tries_ = 0;
  std::vector<uint32_t> listeners_armed_;
  Clock::time_point rest_until_;
  std::string name_prefix_;
  uint64_t num_handed_over_ = 0;
  std::thread thread_;  // last: it uses the others
};

}  // namespace quire::server::door
