#pragma once

// A real gRPC server on loopback over a fake engine, for the tests of the RPCs.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "server/call/egress.h"
#include "server/call/rpc_counters.h"
#include "server/grpc/grpc_server.h"
#include "server/identity/identity_store.h"
#include "tests/server/fake_engine.h"
#include "tests/server/grpc_client.h"

namespace quire::testing {

// A server on a free port of loopback.
class TestServer {
 public:
  explicit TestServer(FakeEngineOptions options = {}, server::ServerConfig config = {},
                      const server::TlsFiles& tls = {}, server::door::PeerGate gate = nullptr)
      : engine(std::move(options)) {
    if (config.listen == server::ServerConfig().listen) config.listen = "127.0.0.1:0";
    auto identities = server::IdentityStore::Create(
        config.auth_token_file, {.certificates = !config.tls_client_ca.empty()});
    EXPECT_TRUE(identities.ok()) << identities.status();
    identities_ = *std::move(identities);
    auto started = server::GrpcServer::Start(config, tls,
                                             {.engine = engine,
                                              .egress = egress_,
                                              .counters = counters,
                                              .open_calls = open_calls,
                                              .door_counters = door_counters,
                                              .identities = *identities_,
                                              .gate = std::move(gate)});
    if (started.ok()) grpc = *std::move(started);
    EXPECT_NE(grpc, nullptr) << started.status();
  }
  ~TestServer() { engine.Release(); }

 private:
  std::unique_ptr<server::IdentityStore> identities_;
  server::Egress egress_;  // declared before the engine, whose thread calls the sinks

 public:
  server::RpcCounters counters;
  server::OpenCalls open_calls;
  server::door::DoorCounters door_counters;
  FakeEngine engine;
  std::unique_ptr<server::GrpcServer> grpc;
};

}  // namespace quire::testing
