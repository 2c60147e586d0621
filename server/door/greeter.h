#pragma once

// The first thread of the door. It accepts connections, does the TLS handshake, waits for HTTP/2's
// first frame, and hands the connection over. It disconnects a client that is too slow. Handshakes
// run on this thread so that they do not delay the tokens that the Relay sends.

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

// Gives gRPC its end of a local connection.
using HandOver = std::function<void(base::UniqueFd)>;

// SetTls and ExpectSelfCall are thread-safe. Only the thread that owns the Greeter may call the
// other methods.
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

  // Sets the TLS context of new connections.
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
  // Gives the client a place, turns it away, or leaves it to wait until another client makes room.
  // Returns false if the client must wait.
  bool LetIn(AcceptedClient& client);
  void TryLobby();
  void Greet(Newcomer& newcomer);
  // Reads the first bytes of HTTP/2, and returns true when all have come. Returns false when more
  // are needed, or when the newcomer was turned away.
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
  // A client that connected when the server was full, and the number of tries that are left to find
  // a place for the client. While `lobby_` has a client, no other client is accepted.
  std::optional<AcceptedClient> lobby_;
  int lobby_tries_ = 0;
  std::vector<uint32_t> listeners_armed_;
  Clock::time_point rest_until_;
  std::string name_prefix_;
  uint64_t num_handed_over_ = 0;
  std::thread thread_;  // declared last, because it uses the other members
};

}  // namespace quire::server::door
