// TokenService: tokenizer and chat template. The work runs on the frontend pool, so that it does
// not block the transport's threads.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/request/answer_size.h"
#include "quire/v1/token_service.pb.h"
#include "server/call/held_bytes.h"
#include "server/service/proto_conversion.h"
#include "server/service/services.h"
#include "server/service/unary_call.h"

namespace quire::server {
namespace {

// `Work` turns a Request into a Response, and returns a status.
template <typename Request, typename Response, typename Work>
class TokenCall final : public FrontendCall {
 public:
  TokenCall(const ServiceParts& parts, Rpc rpc, Transport& transport, HeldBytes& held, Work work)
      : FrontendCall(parts, rpc, transport), held_(held), work_(std::move(work)) {}

  void OnMessage(std::string_view bytes) override {
    if (const absl::Status status = Begin(bytes); !status.ok()) Answer(status);
  }

 private:
  absl::Status Begin(std::string_view bytes) {
    const auto num_bytes = static_cast<int64_t>(bytes.size());
    RETURN_IF_ERROR(Identify());
    RETURN_IF_ERROR(Hold(held_, kCallBytes + 2 * num_bytes));
    RETURN_IF_ERROR(ParseMessage(bytes, parts().max_parsed_bytes, request_));
    RETURN_IF_ERROR(CheckModel(parts().engine, request_.model()));
    return RunOnFrontend(num_bytes, [this] {
      Response response;
      const absl::Status status = RunUnlessCancelled([&]() -> absl::Status {
        RETURN_IF_ERROR(work_(request_, response));
        const auto num_answer_bytes = static_cast<int64_t>(response.ByteSizeLong());
        if (num_answer_bytes > parts().max_answer_bytes) {
          return engine::AnswerTooLarge(parts().max_answer_bytes, "send less at once");
        }
        return HoldMore(num_answer_bytes);
      });
      Answer(status, &response);
    });
  }

  HeldBytes& held_;  // not owned
  const Work work_;
  Request request_;
};

template <typename Request, typename Response, typename Work>
void Add(const ServiceParts& parts, Rpc rpc, const std::shared_ptr<HeldBytes>& held,
         CallTable& calls, Work work) {
  calls.Add(rpc, [&parts, rpc, held, work](Transport& transport) -> Call* {
    return new TokenCall<Request, Response, Work>(parts, rpc, transport, *held, work);
  });
}

}  // namespace

void AddTokenCalls(const ServiceParts& parts, CallTable& calls) {
  const auto held = std::make_shared<HeldBytes>(FrontendCall::kMostHeldBytes);
  Add<v1::TokenizeRequest, v1::TokenizeResponse>(
      parts, Rpc::kTokenize, held, calls,
      [&parts](const v1::TokenizeRequest& in, v1::TokenizeResponse& out) -> absl::Status {
        ASSIGN_OR_RETURN(const text::InputKind kind, KindOf(in));
        ASSIGN_OR_RETURN(const std::vector<engine::Piece> pieces,
                         parts.engine.Tokenize(in.text(), kind, in.parse_special_tokens()));
        out.mutable_tokens()->Reserve(static_cast<int>(pieces.size()));
        for (const engine::Piece& piece : pieces) *out.add_tokens() = ToProto(piece);
        return absl::OkStatus();
      });
  Add<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      parts, Rpc::kDetokenize, held, calls,
      [&parts](const v1::DetokenizeRequest& in, v1::DetokenizeResponse& out) -> absl::Status {
        const engine::TokenIds ids(in.token_ids().begin(), in.token_ids().end());
        const bool skip_special = in.has_skip_special_tokens() ? in.skip_special_tokens() : true;
        ASSIGN_OR_RETURN(const std::string text, parts.engine.Detokenize(ids, skip_special));
        out.set_text(base::LossyUtf8(text));
        return absl::OkStatus();
      });
  Add<v1::ApplyChatTemplateRequest, v1::ApplyChatTemplateResponse>(
      parts, Rpc::kApplyChatTemplate, held, calls,
      [&parts](v1::ApplyChatTemplateRequest& in,
               v1::ApplyChatTemplateResponse& out) -> absl::Status {
        ASSIGN_OR_RETURN(const engine::ChatMessages messages,
                         FromProto(std::move(*in.mutable_chat())));
        const bool add_prompt = in.has_add_generation_prompt() ? in.add_generation_prompt() : true;
        ASSIGN_OR_RETURN(const std::string text,
                         parts.engine.ApplyChatTemplate(messages, add_prompt));
        out.set_text(base::LossyUtf8(text));
        if (in.with_token_ids()) {
          ASSIGN_OR_RETURN(const engine::TokenIds ids,
                           parts.engine.TokenizeChat(messages, add_prompt));
          out.mutable_token_ids()->Assign(ids.begin(), ids.end());
        }
        return absl::OkStatus();
      });
}

}  // namespace quire::server
