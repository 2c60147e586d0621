#pragma once

// Carries bytes between clients and gRPC, and shows them to an Http2Watch. One thread serves all
// connections.
//
// The relay reads from one end only after it has written all earlier bytes to the other end. This
// is the only flow control. It bounds the memory of a connection to one read in each direction.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <openssl/types.h>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "server/door/client_socket.h"
#include "server/door/door_counters.h"
#include "server/door/epoll.h"
#include "server/door/http2_watch.h"
#include "server/door/lent_socket.h"
#include "server/door/peer_directory.h"
#include "server/door/places.h"

namespace quire::server::door {

// A client that speaks HTTP/2, and the local connection to gRPC that was made for it. The client
// keeps its place until both connections are closed.
struct RelayedClient {
  ClientSocket client;
  base::UniqueFd grpc;      // our end
  LentSocket lent;          // gRPC's end
  std::string peer_name;    // the key in the PeerDirectory
  std::string address;      // for the log
  std::string first_bytes;  // all that the client has sent so far
  Gate gate;
  Places::Place place;
};

// Thread-safe.
class Relay {
 public:
  // Borrows its arguments.
  Relay(const Http2Limits& limits, PeerDirectory& peers, DoorCounters& counters);
  ~Relay();  // Stop()
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void Add(RelayedClient client);
  // Ends the connections whose certificates `context` does not accept, present and future ones.
  // When this returns, no further call of such a connection reaches gRPC.
  void SetTls(std::shared_ptr<SSL_CTX> context);
  // Ends one connection that has no call. Prefers the address that has the most places, and then
  // the connection that has been idle for longest.
  void EndIdlest();
  // Must be called after gRPC has closed its ends. Sends the bytes that gRPC has written, for at
  // most one second, and then closes all connections.
  void Stop();

 private:
  struct Connection;
  // One end of a connection. An epoll event carries a pointer to the End that it belongs to.
  struct End {
    Connection* connection;
    bool is_grpc;
  };

  void Run();
  void TakeNew();
  void EndIdlestNow();
  void EndUnacceptedNow();
  void EndIfUnaccepted(Connection& c);
  void Serve(Connection& c, uint32_t events, bool is_grpc);
  void Settle(Connection& c);
  void PumpToGrpc(Connection& c);
  void PumpToClient(Connection& c);
  bool FlushToGrpc(Connection& c);
  bool FlushToClient(Connection& c);
  void SendToClient(Connection& c, std::string_view bytes);
  void MakeRoom();
  void Discard(Connection& c);
  void CutOff(Connection& c);
  void Linger(Connection& c);
  void SayLastWords(Connection& c);
  void LeaveGrpc(Connection& c);
  void AwaitGrpc(Connection& c);
  void CloseGrpc(Connection& c);
  void Close(Connection& c);
  void BuryWhenLeft(Connection& c);
  void Arm(Connection& c);
  void NoteState(Connection& c);
  void Sweep(Clock::time_point now);
  void Bury();

  const Http2Limits& limits_;
  PeerDirectory& peers_;
  DoorCounters& counters_;
  Epoll epoll_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> end_wanted_ = false;
  std::atomic<bool> tls_is_new_ = false;

  base::Mutex mu_;
  std::vector<RelayedClient> new_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SSL_CTX> new_tls_ ABSL_GUARDED_BY(mu_);

  // Used by the thread only.
  std::shared_ptr<SSL_CTX> tls_;  // null until SetTls: all have shown their certificates to one
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> unfinished_;  // connections with work left after their turn
  std::vector<Connection*> dead_;
  Connection* making_room_ = nullptr;  // ended by EndIdlest, but still holds its place
  int num_timed_ = 0;                  // connections that wait for something with a deadline
  std::vector<uint8_t> buffer_;
  std::string judged_;  // what the watch makes of one read of a client
  std::thread thread_;  // declared last, because it uses the other members
};

}  // namespace quire::server::door
