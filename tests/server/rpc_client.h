#pragma once

// A client of quire.v1 for the tests, on whatever carries its calls: GrpcClient or MemoryClient.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "google/rpc/status.pb.h"

#include "quire/v1/control_service.pb.h"
#include "quire/v1/inference_service.pb.h"
#include "quire/v1/prefix_service.pb.h"
#include "quire/v1/tenant_service.pb.h"
#include "quire/v1/token_service.pb.h"
#include "server/call/rpc_counters.h"

namespace quire::testing {

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

// A call of one message, whose answer is a stream. Ends when it is destroyed.
class MessageReader {
 public:
  virtual ~MessageReader() = default;
  // Waits for the next message. Returns false when none follows.
  virtual bool Read(google::protobuf::Message& message) = 0;
  virtual void Cancel() = 0;
  // Waits for the end of the call. Called once.
  virtual Outcome Finish() = 0;
};

template <typename Response>
class RpcReader {
 public:
  explicit RpcReader(std::unique_ptr<MessageReader> reader) : reader_(std::move(reader)) {}

  bool Read(Response& message) { return reader_->Read(message); }
  void Cancel() { reader_->Cancel(); }
  Outcome Finish() { return reader_->Finish(); }

 private:
  const std::unique_ptr<MessageReader> reader_;
};

class RpcClient {
 public:
  virtual ~RpcClient() = default;

  // Begins a call.
  virtual std::unique_ptr<MessageReader> Begin(server::Rpc rpc,
                                               const google::protobuf::Message& request,
                                               const CallOptions& options) = 0;

  // Makes a call that is answered with one message.
  template <typename Response>
  Reply<Response> Call(server::Rpc rpc, const google::protobuf::Message& request,
                       const CallOptions& options = {}) {
    Reply<Response> reply;
    const std::unique_ptr<MessageReader> call = Begin(rpc, request, options);
    call->Read(reply.response);
    static_cast<Outcome&>(reply) = call->Finish();
    return reply;
  }

  auto Generate(const v1::GenerateRequest& request, const CallOptions& options = {}) {
    return Call<v1::GenerateResponse>(server::Rpc::kGenerate, request, options);
  }
  auto GenerateStream(const v1::GenerateRequest& request, const CallOptions& options = {}) {
    return Stream<v1::GenerateStreamResponse>(server::Rpc::kGenerateStream, request, options);
  }
  auto GenerateBatch(const v1::GenerateBatchRequest& request, const CallOptions& options = {}) {
    return Stream<v1::GenerateBatchResponse>(server::Rpc::kGenerateBatch, request, options);
  }
  auto Score(const v1::ScoreRequest& request, const CallOptions& options = {}) {
    return Call<v1::ScoreResponse>(server::Rpc::kScore, request, options);
  }
  auto Tokenize(const v1::TokenizeRequest& request, const CallOptions& options = {}) {
    return Call<v1::TokenizeResponse>(server::Rpc::kTokenize, request, options);
  }
  auto Detokenize(const v1::DetokenizeRequest& request, const CallOptions& options = {}) {
    return Call<v1::DetokenizeResponse>(server::Rpc::kDetokenize, request, options);
  }
  auto ApplyChatTemplate(const v1::ApplyChatTemplateRequest& request,
                         const CallOptions& options = {}) {
    return Call<v1::ApplyChatTemplateResponse>(server::Rpc::kApplyChatTemplate, request, options);
  }
  auto ListModels(const CallOptions& options = {}) {
    return Call<v1::ListModelsResponse>(server::Rpc::kListModels, v1::ListModelsRequest(), options);
  }
  auto GetModelInfo(const v1::GetModelInfoRequest& request, const CallOptions& options = {}) {
    return Call<v1::GetModelInfoResponse>(server::Rpc::kGetModelInfo, request, options);
  }
  auto GetServerInfo(const CallOptions& options = {}) {
    return Call<v1::GetServerInfoResponse>(server::Rpc::kGetServerInfo, v1::GetServerInfoRequest(),
                                           options);
  }
  auto GetStats(const CallOptions& options = {}) {
    return Call<v1::GetStatsResponse>(server::Rpc::kGetStats, v1::GetStatsRequest(), options);
  }
  auto GetQuota(const CallOptions& options = {}) {
    return Call<v1::Tenant>(server::Rpc::kGetQuota, v1::GetQuotaRequest(), options);
  }
  auto ListTenants(const CallOptions& options = {}) {
    return Call<v1::ListTenantsResponse>(server::Rpc::kListTenants, v1::ListTenantsRequest(),
                                         options);
  }
  auto Abort(const v1::AbortRequest& request, const CallOptions& options = {}) {
    return Call<v1::AbortResponse>(server::Rpc::kAbort, request, options);
  }
  auto Drain(const CallOptions& options = {}) {
    return Call<v1::DrainResponse>(server::Rpc::kDrain, v1::DrainRequest(), options);
  }
  auto FlushPrefixCache(const CallOptions& options = {}) {
    return Call<v1::FlushPrefixCacheResponse>(server::Rpc::kFlushPrefixCache,
                                              v1::FlushPrefixCacheRequest(), options);
  }
  auto CreatePrefix(const v1::CreatePrefixRequest& request, const CallOptions& options = {}) {
    return Call<v1::Prefix>(server::Rpc::kCreatePrefix, request, options);
  }
  auto GetPrefix(const v1::GetPrefixRequest& request, const CallOptions& options = {}) {
    return Call<v1::Prefix>(server::Rpc::kGetPrefix, request, options);
  }
  auto ListPrefixes(const v1::ListPrefixesRequest& request, const CallOptions& options = {}) {
    return Call<v1::ListPrefixesResponse>(server::Rpc::kListPrefixes, request, options);
  }
  auto UpdatePrefix(const v1::UpdatePrefixRequest& request, const CallOptions& options = {}) {
    return Call<v1::Prefix>(server::Rpc::kUpdatePrefix, request, options);
  }
  auto DeletePrefix(const v1::DeletePrefixRequest& request, const CallOptions& options = {}) {
    return Call<v1::DeletePrefixResponse>(server::Rpc::kDeletePrefix, request, options);
  }
  auto WarmPrefix(const v1::WarmPrefixRequest& request, const CallOptions& options = {}) {
    return Call<v1::Prefix>(server::Rpc::kWarmPrefix, request, options);
  }

 private:
  template <typename Response>
  std::unique_ptr<RpcReader<Response>> Stream(server::Rpc rpc,
                                              const google::protobuf::Message& request,
                                              const CallOptions& options) {
    return std::make_unique<RpcReader<Response>>(Begin(rpc, request, options));
  }
};

inline v1::GenerateRequest Prompt(const std::string& text = "hello") {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

template <typename Response>
std::vector<Response> ReadAll(RpcReader<Response>& stream) {
  std::vector<Response> messages;
  for (Response message; stream.Read(message);) messages.push_back(message);
  return messages;
}

template <typename Details>
bool HasDetails(const Outcome& outcome, Details& details) {
  for (const google::protobuf::Any& any : outcome.details.details()) {
    if (any.UnpackTo(&details)) return true;
  }
  return false;
}

}  // namespace quire::testing
