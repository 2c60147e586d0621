// TokenService: tokenizer and chat template, on the frontend pool so that gRPC's threads stay free.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/support/server_callback.h>

#include "base/status_macros.h"
#include "quire/v1/token_service.grpc.pb.h"
#include "server/proto_conversion.h"
#include "server/rpc_context.h"
#include "server/utf8.h"

namespace quire::server {
namespace {

class TokenService final : public v1::TokenService::CallbackService {
 public:
  explicit TokenService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    return OnFrontend(*context, Rpc::kTokenize, request->model(), [=, this]() -> absl::Status {
      const bool add_special =
          request->has_add_special_tokens() ? request->add_special_tokens() : true;
      ASSIGN_OR_RETURN(
          const std::vector<engine::Piece> pieces,
          parts_.engine.Tokenize(request->text(), add_special, request->parse_special_tokens()));
      response->mutable_tokens()->Reserve(static_cast<int>(pieces.size()));
      for (const engine::Piece& piece : pieces) *response->add_tokens() = ToProto(piece);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    return OnFrontend(*context, Rpc::kDetokenize, request->model(), [=, this]() -> absl::Status {
      const engine::TokenIds ids(request->token_ids().begin(), request->token_ids().end());
      const bool skip_special =
          request->has_skip_special_tokens() ? request->skip_special_tokens() : true;
      ASSIGN_OR_RETURN(std::string text, parts_.engine.Detokenize(ids, skip_special));
      response->set_text(ToUtf8(std::move(text)));
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ApplyChatTemplate(grpc::CallbackServerContext* context,
                                              const v1::ApplyChatTemplateRequest* request,
                                              v1::ApplyChatTemplateResponse* response) override {
    return OnFrontend(
        *context, Rpc::kApplyChatTemplate, request->model(), [=, this]() -> absl::Status {
          ASSIGN_OR_RETURN(const engine::ChatMessages messages, FromProto(request->chat()));
          const bool add_prompt =
              request->has_add_generation_prompt() ? request->add_generation_prompt() : true;
          ASSIGN_OR_RETURN(std::string text, parts_.engine.ApplyChatTemplate(messages, add_prompt));
          response->set_text(ToUtf8(std::move(text)));
          return absl::OkStatus();
        });
  }

 private:
  // The request and the response live until the reactor has finished.
  template <typename Work>
  grpc::ServerUnaryReactor* OnFrontend(grpc::CallbackServerContext& context, Rpc rpc,
                                       const std::string& model, Work work) {
    grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
    const auto end = [this, rpc, reactor](const absl::Status& status) {
      parts_.counters.Count(rpc, status.code());
      reactor->Finish(ToGrpcStatus(status));
    };
    const auto start = [&]() -> absl::Status {
      RETURN_IF_ERROR(TakeRequestId(context, "").status());
      RETURN_IF_ERROR(AuthenticateCaller(context, parts_.tokens).status());
      RETURN_IF_ERROR(CheckModel(parts_.engine, model));
      return parts_.engine.RunOnFrontend([end, work = std::move(work)] { end(work()); });
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
