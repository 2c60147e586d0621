#pragma once

// A client over gRPC.

#include <memory>
#include <string>
#include <string_view>

#include "grpc/reflection/v1/reflection.pb.h"

#include "tests/server/rpc_client.h"

namespace quire::testing {

struct GrpcClientOptions {
  std::string ca;  // PEM; empty: no TLS
  std::string cert;
  std::string key;
};

// A call whose answer nobody reads. Ends when it is destroyed.
class UnreadCall {
 public:
  virtual ~UnreadCall() = default;
};

enum class Health { kUnknown, kServing, kNotServing, kNoSuchService, kUnreachable };

class GrpcClient : public RpcClient {
 public:
  explicit GrpcClient(const std::string& address, const GrpcClientOptions& options = {});
  ~GrpcClient() override;

  std::unique_ptr<MessageReader> Begin(server::Rpc rpc, const google::protobuf::Message& request,
                                       const CallOptions& options) override;

  // Calls any method, such as "/quire.v1.TokenService/Tokenize", with the bytes of a message, and
  // reads at most one answer, which goes to `answer` unless it is null.
  Outcome CallRaw(const std::string& path, const std::string& bytes,
                  const CallOptions& options = {}, std::string* answer = nullptr);
  // Returns when the answer, or the call's end, has begun to come. What is more than the stream's
  // window of 64 KiB then stays with the server.
  std::unique_ptr<UnreadCall> CallUnread(const std::string& path, const std::string& bytes,
                                         const CallOptions& options = {});

  Health CheckHealth(std::string_view service);
  // Returns true if the server serves grpc.reflection. Expects that it serves both versions or
  // neither.
  bool HasReflection();
  // Makes a reflection call. Both versions of reflection have the same messages on the wire. If the
  // call failed, the result has no response set.
  grpc::reflection::v1::ServerReflectionResponse Reflect(
      std::string_view version, const grpc::reflection::v1::ServerReflectionRequest& request);

 private:
  struct Channel;

  const std::unique_ptr<Channel> channel_;
};

}  // namespace quire::testing
