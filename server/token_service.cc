// TokenService: tokenizer and chat template, on the frontend pool so that gRPC's threads stay free.

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "quire/v1/token_service.grpc.pb.h"
#include "server/proto_conversion.h"
#include "server/rpc_context.h"

namespace quire::server {
namespace {

using RawTokenService = v1::TokenService::WithRawCallbackMethod_Tokenize<
    v1::TokenService::WithRawCallbackMethod_Detokenize<
        v1::TokenService::WithRawCallbackMethod_ApplyChatTemplate<v1::TokenService::Service>>>;

class TokenService final : public RawTokenService {
 public:
  explicit TokenService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return OnFrontend<v1::TokenizeRequest, v1::TokenizeResponse>(
        *context, Rpc::kTokenize, *request, *response,
        [this](const v1::TokenizeRequest& in, v1::TokenizeResponse& out) -> absl::Status {
          const bool add_special = in.has_add_special_tokens() ? in.add_special_tokens() : true;
          ASSIGN_OR_RETURN(
              const std::vector<engine::Piece> pieces,
              parts_.engine.Tokenize(in.text(), add_special, in.parse_special_tokens()));
          out.mutable_tokens()->Reserve(static_cast<int>(pieces.size()));
          for (const engine::Piece& piece : pieces) *out.add_tokens() = ToProto(piece);
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return OnFrontend<v1::DetokenizeRequest, v1::DetokenizeResponse>(
        *context, Rpc::kDetokenize, *request, *response,
        [this](const v1::DetokenizeRequest& in, v1::DetokenizeResponse& out) -> absl::Status {
          const engine::TokenIds ids(in.token_ids().begin(), in.token_ids().end());
          const bool skip_special = in.has_skip_special_tokens() ? in.skip_special_tokens() : true;
          ASSIGN_OR_RETURN(const std::string text, parts_.engine.Detokenize(ids, skip_special));
          out.set_text(base::LossyUtf8(text));
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* ApplyChatTemplate(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) override {
    return OnFrontend<v1::ApplyChatTemplateRequest, v1::ApplyChatTemplateResponse>(
        *context, Rpc::kApplyChatTemplate, *request, *response,
        [this](const v1::ApplyChatTemplateRequest& in,
               v1::ApplyChatTemplateResponse& out) -> absl::Status {
          ASSIGN_OR_RETURN(const engine::ChatMessages messages, FromProto(in.chat()));
          const bool add_prompt =
              in.has_add_generation_prompt() ? in.add_generation_prompt() : true;
          ASSIGN_OR_RETURN(const std::string text,
                           parts_.engine.ApplyChatTemplate(messages, add_prompt));
          out.set_text(base::LossyUtf8(text));
          return absl::OkStatus();
        });
  }

 private:
  // `out` lives until the reactor has finished. `work` makes a Response of a Request.
  template <typename Request, typename Response, typename Work>
  grpc::ServerUnaryReactor* OnFrontend(grpc::CallbackServerContext& context, Rpc rpc,
                                       const grpc::ByteBuffer& in, grpc::ByteBuffer& out,
                                       Work work) {
    grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
    const auto end = [this, rpc, reactor, counts = HasMessage(in)](const absl::Status& status) {
      if (counts) parts_.counters.Count(rpc, status.code());
      reactor->Finish(ToGrpcStatus(status));
    };
    const auto start = [&]() -> absl::Status {
      RETURN_IF_ERROR(TakeRequestId(context, "").status());
      RETURN_IF_ERROR(AuthenticateCaller(context, parts_).status());
      auto request = std::make_shared<Request>();
      RETURN_IF_ERROR(ParseMessage(in, *request));
      RETURN_IF_ERROR(CheckModel(parts_.engine, request->model()));
      return parts_.engine.RunOnFrontend([end, &out, request, work] {
        Response response;
        const absl::Status status = work(*request, response);
        if (status.ok()) SerializeMessage(response, out);
        end(status);
      });
    };
    if (const absl::Status status = start(); !status.ok()) end(status);
    return reactor;
  }

  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTokenService(const ServiceParts& parts) {
  return std::make_unique<TokenService>(parts);
}

}  // namespace quire::server
