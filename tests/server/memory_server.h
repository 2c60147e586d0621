#pragma once

// The services of quire.v1 over a fake engine, without gRPC, sockets or a door: their calls are
// carried in memory. What a client does and what its call reports happens in the client's thread.

#include <memory>
#include <string>

#include "server/call/access_log.h"
#include "server/call/call.h"
#include "server/call/egress.h"
#include "server/call/rpc_counters.h"
#include "server/config/server_config.h"
#include "server/door/peer_directory.h"
#include "server/identity/identity_store.h"
#include "server/service/services.h"
#include "tests/server/fake_engine.h"
#include "tests/server/rpc_client.h"

namespace quire::testing {

class MemoryServer {
 public:
  explicit MemoryServer(FakeEngineOptions options = {}, const server::ServerConfig& config = {});
  ~MemoryServer() { engine.Release(); }
  MemoryServer(const MemoryServer&) = delete;
  MemoryServer& operator=(const MemoryServer&) = delete;

  void Drain() { engine.StartDrain(); }
  const server::CallTable& calls() const { return calls_; }

 private:
  const std::unique_ptr<server::IdentityStore> identities_;
  server::door::PeerDirectory peers_;
  server::AccessLog access_log_;
  server::Egress egress_;  // declared before the engine, whose thread calls the sinks

 public:
  server::RpcCounters counters;
  server::OpenCalls open_calls;
  FakeEngine engine;

 private:
  const server::ServiceParts parts_;
  server::CallTable calls_;
};

// A call of any number of messages. Its functions are called by one thread.
class MemoryCall : public MessageReader {
 public:
  // Waits until the server reads, and sends a message.
  virtual void Send(const google::protobuf::Message& message) = 0;
  // Waits until the server reads, and sends no more.
  virtual void SendNoMore() = 0;
};

class MemoryClient : public RpcClient {
 public:
  // `server` must outlive the client and its calls.
  explicit MemoryClient(MemoryServer& server) : server_(server) {}

  std::unique_ptr<MemoryCall> Open(server::Rpc rpc, const CallOptions& options = {});
  std::unique_ptr<MessageReader> Begin(server::Rpc rpc, const google::protobuf::Message& request,
                                       const CallOptions& options) override;

 private:
  MemoryServer& server_;
};

}  // namespace quire::testing
