// TokenService: tokenizer and chat template. The work runs on the frontend pool, so that it does
// not block gRPC's threads.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/request/answer_size.h"
#include "quire/v1/token_service.grpc.pb.h"
#include "server/call/held_bytes.h"
#include "server/grpc/proto_conversion.h"
#include "server/grpc/unary_reactor.h"

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
          ASSIGN_OR_RETURN(const text::InputKind kind, KindOf(in));
          ASSIGN_OR_RETURN(const std::vector<engine::Piece> pieces,
                           parts_.engine.Tokenize(in.text(), kind, in.parse_special_tokens()));
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
        [this](v1::ApplyChatTemplateRequest& in,
               v1::ApplyChatTemplateResponse& out) -> absl::Status {
          ASSIGN_OR_RETURN(const engine::ChatMessages messages,
                           FromProto(std::move(*in.mutable_chat())));
          const bool add_prompt =
              in.has_add_generation_prompt() ? in.add_generation_prompt() : true;
          ASSIGN_OR_RETURN(const std::string text,
                           parts_.engine.ApplyChatTemplate(messages, add_prompt));
          out.set_text(base::LossyUtf8(text));
          if (in.with_token_ids()) {
            ASSIGN_OR_RETURN(const engine::TokenIds ids,
                             parts_.engine.TokenizeChat(messages, add_prompt));
            out.mutable_token_ids()->Assign(ids.begin(), ids.end());
          }
          return absl::OkStatus();
        });
  }

 private:
  // Runs `work` on the frontend pool. `work` turns the Request in `in` into the Response in `out`,
  // and `out` lives until the reactor has finished.
  template <typename Request, typename Response, typename Work>
  grpc::ServerUnaryReactor* OnFrontend(grpc::CallbackServerContext& context, Rpc rpc,
                                       const grpc::ByteBuffer& in, grpc::ByteBuffer& out,
                                       Work work) {
    auto* call = new FrontendReactor(parts_, context, rpc, in);
    const auto start = [&]() -> absl::Status {
      RETURN_IF_ERROR(call->Identify());
      RETURN_IF_ERROR(
          call->Hold(held_, FrontendReactor::kCallBytes + 2 * static_cast<int64_t>(in.Length())));
      auto request = std::make_shared<Request>();
      RETURN_IF_ERROR(ParseMessage(parts_, in, *request));
      RETURN_IF_ERROR(CheckModel(parts_.engine, request->model()));
      return call->RunOnFrontend(
          static_cast<int64_t>(in.Length()), [this, call, &out, request, work] {
            call->End(call->RunUnlessCancelled([&]() -> absl::Status {
              Response response;
              RETURN_IF_ERROR(work(*request, response));
              const auto num_bytes = static_cast<int64_t>(response.ByteSizeLong());
              if (num_bytes > parts_.max_answer_bytes) {
                return engine::AnswerTooLarge(parts_.max_answer_bytes, "send less at once");
              }
              RETURN_IF_ERROR(call->HoldMore(num_bytes));
              SerializeMessage(response, out);
              return absl::OkStatus();
            }));
          });
    };
    if (const absl::Status status = start(); !status.ok()) call->End(status);
    return call;
  }

  const ServiceParts parts_;
  HeldBytes held_{FrontendReactor::kMostHeldBytes};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTokenService(const ServiceParts& parts) {
  return std::make_unique<TokenService>(parts);
}

}  // namespace quire::server
