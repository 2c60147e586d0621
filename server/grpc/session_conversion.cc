#include "server/grpc/session_conversion.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/status_macros.h"
#include "server/grpc/proto_conversion.h"
#include "server/grpc/proto_time.h"

namespace quire::server {

engine::SessionCaller ToSessionCaller(const Principal& caller, bool is_operator) {
  return {.tenant = caller.tenant, .is_operator = is_operator, .limits = caller.limits};
}

engine::SessionParams FromProto(const v1::CreateSessionRequest& request,
                                const engine::SessionCaller& caller) {
  engine::SessionParams params{.caller = caller,
                               .model = request.model(),
                               .prefix_name = request.prefix_name(),
                               .display_name = request.display_name(),
                               .pinned = request.pinned(),
                               .salt = request.salt(),
                               .request_id = request.request_id()};
  if (request.has_ttl()) params.ttl = ToAbsl(request.ttl());
  return params;
}

absl::StatusOr<engine::SessionAppend> FromProto(const v1::AppendToSessionRequest& request,
                                                const engine::SessionCaller& caller) {
  engine::SessionAppend append{.caller = caller,
                               .name = request.name(),
                               .etag = request.etag(),
                               .request_id = request.request_id()};
  switch (request.content_case()) {
    case v1::AppendToSessionRequest::kText:
      append.content = request.text();
      break;
    case v1::AppendToSessionRequest::kTokenIds:
      append.content =
          engine::TokenIds(request.token_ids().ids().begin(), request.token_ids().ids().end());
      break;
    case v1::AppendToSessionRequest::kChat: {
      ASSIGN_OR_RETURN(append.content, FromProto(request.chat()));
      break;
    }
    case v1::AppendToSessionRequest::CONTENT_NOT_SET:
      return absl::InvalidArgumentError("content: want one of text, token_ids, chat");
  }
  return append;
}

engine::SessionFork FromProto(const v1::ForkSessionRequest& request,
                              const engine::SessionCaller& caller) {
  engine::SessionFork fork{
      .caller = caller, .name = request.name(), .request_id = request.request_id()};
  if (request.has_at_token()) fork.at_token = request.at_token();
  if (request.has_count()) fork.count = request.count();
  if (request.has_ttl()) fork.ttl = ToAbsl(request.ttl());
  if (request.has_pinned()) fork.pinned = request.pinned();
  return fork;
}

v1::Session ToProto(const engine::SessionInfo& info) {
  v1::Session out;
  out.set_name(info.name);
  out.set_display_name(info.display_name);
  out.set_num_tokens(ToWireCount(info.num_tokens));
  out.set_num_turns(ToWireCount(info.num_turns));
  out.set_in_turn(info.in_turn);
  ToProto(info.create_time, *out.mutable_create_time());
  ToProto(info.expire_time, *out.mutable_expire_time());
  ToProto(info.ttl, *out.mutable_ttl());
  out.set_etag(info.etag);
  out.set_tenant(info.tenant);
  out.set_prefix_name(info.prefix_name);
  out.set_pinned(info.pinned);
  out.set_num_pinned_blocks(ToWireCount(info.num_pinned_blocks));
  return out;
}

v1::AppendToSessionResponse ToProto(const engine::SessionAppended& appended) {
  v1::AppendToSessionResponse out;
  *out.mutable_session() = ToProto(appended.session);
  out.set_kept_tokens(ToWireCount(appended.kept_tokens));
  return out;
}

}  // namespace quire::server
