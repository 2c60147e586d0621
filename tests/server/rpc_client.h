#pragma once

// A gRPC client for the tests. rpc_client.cc is the only file of these tests that includes gRPC.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/rpc/status.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"

#include "quire/v1/control_service.pb.h"
#include "quire/v1/inference_service.pb.h"
#include "quire/v1/prefix_service.pb.h"
#include "quire/v1/tenant_service.pb.h"
#include "quire/v1/token_service.pb.h"

namespace quire::testing {

struct RpcClientOptions {
  std::string ca;  // PEM; empty: no TLS
  std::string cert;
  std::string key;
};

struct CallOptions {
  std::vector<std::pair<std::string, std::string>> metadata;
  absl::Duration timeout = absl::Seconds(20);
};

struct Outcome {
  absl::Status status;
  google::rpc::Status details;
  std::multimap<std::string, std::string> initial_metadata;
};

template <typename Response>
struct Reply : Outcome {
  Response response;
};

// A call whose answer is a stream.
template <typename Response>
class RpcReader {
 public:
  virtual ~RpcReader() = default;
  virtual bool Read(Response& message) = 0;
  virtual void Cancel() = 0;
  virtual Outcome Finish() = 0;
};
using RpcStream = RpcReader<v1::GenerateStreamResponse>;
using RpcBatch = RpcReader<v1::GenerateBatchResponse>;

// A call whose answer nobody reads. Ends when it is destroyed.
class UnreadCall {
 public:
  virtual ~UnreadCall() = default;
};

enum class Health { kUnknown, kServing, kNotServing, kNoSuchService, kUnreachable };

class RpcClient {
 public:
  explicit RpcClient(const std::string& address, const RpcClientOptions& options = {});
  ~RpcClient();

  Reply<v1::GenerateResponse> Generate(const v1::GenerateRequest& request,
                                       const CallOptions& options = {});
  std::unique_ptr<RpcStream> GenerateStream(const v1::GenerateRequest& request,
                                            const CallOptions& options = {});
  std::unique_ptr<RpcBatch> GenerateBatch(const v1::GenerateBatchRequest& request,
                                          const CallOptions& options = {});
  Reply<v1::ScoreResponse> Score(const v1::ScoreRequest& request, const CallOptions& options = {});
  Reply<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request,
                                       const CallOptions& options = {});
  Reply<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                           const CallOptions& options = {});
  Reply<v1::ApplyChatTemplateResponse> ApplyChatTemplate(
      const v1::ApplyChatTemplateRequest& request, const CallOptions& options = {});
  Reply<v1::ListModelsResponse> ListModels(const CallOptions& options = {});
  Reply<v1::GetModelInfoResponse> GetModelInfo(const v1::GetModelInfoRequest& request,
                                               const CallOptions& options = {});
  Reply<v1::GetServerInfoResponse> GetServerInfo(const CallOptions& options = {});
  Reply<v1::GetStatsResponse> GetStats(const CallOptions& options = {});
  Reply<v1::Tenant> GetQuota(const CallOptions& options = {});
  Reply<v1::ListTenantsResponse> ListTenants(const CallOptions& options = {});
  Reply<v1::AbortResponse> Abort(const v1::AbortRequest& request, const CallOptions& options = {});
  Reply<v1::DrainResponse> Drain(const CallOptions& options = {});
  Reply<v1::FlushPrefixCacheResponse> FlushPrefixCache(const CallOptions& options = {});
  Reply<v1::Prefix> CreatePrefix(const v1::CreatePrefixRequest& request,
                                 const CallOptions& options = {});
  Reply<v1::Prefix> GetPrefix(const v1::GetPrefixRequest& request, const CallOptions& options = {});
  Reply<v1::ListPrefixesResponse> ListPrefixes(const v1::ListPrefixesRequest& request,
                                               const CallOptions& options = {});
  Reply<v1::Prefix> UpdatePrefix(const v1::UpdatePrefixRequest& request,
                                 const CallOptions& options = {});
  Reply<v1::DeletePrefixResponse> DeletePrefix(const v1::DeletePrefixRequest& request,
                                               const CallOptions& options = {});
  Reply<v1::Prefix> WarmPrefix(const v1::WarmPrefixRequest& request,
                               const CallOptions& options = {});

  // Calls any method, such as "/quire.v1.TokenService/Tokenize", with the bytes of a message, and
  // reads at most one answer.
  Outcome CallRaw(const std::string& path, const std::string& bytes,
                  const CallOptions& options = {});
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
  struct Stubs;

  const std::unique_ptr<Stubs> stubs_;
};

}  // namespace quire::testing
