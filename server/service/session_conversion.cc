#include "server/service/session_conversion.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "base/status_macros.h"
#include "server/service/proto_conversion.h"
#include "server/service/proto_time.h"

namespace quire::server {

namespace {

absl::StatusOr<engine::SessionCopy> ToCopy(v1::SessionContent content) {
  engine::SessionCopy copy{
      .ids = engine::TokenIds(content.token_ids().begin(), content.token_ids().end()),
      .content_sha256 = content.content_sha256()};
  const int num_messages = content.chat().messages_size();
  if (content.has_chat()) copy.messages = ToMessages(std::move(*content.mutable_chat()));
  int64_t before = -1;
  for (const uint32_t index : content.literal_messages()) {
    if (index <= before || index >= static_cast<uint32_t>(num_messages)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("content.literal_messages: want ascending indexes of the %d messages of "
                          "content.chat, got %d",
                          num_messages, index));
    }
    (*copy.messages)[index].literal = true;
    before = index;
  }
  if (content.has_answer_tokens()) copy.answer_len = content.answer_tokens();
  return copy;
}

v1::SessionContent ToContent(const engine::SessionCopy& copy) {
  v1::SessionContent content;
  content.mutable_token_ids()->Assign(copy.ids.begin(), copy.ids.end());
  if (copy.messages.has_value()) {
    v1::ChatMessages& chat = *content.mutable_chat();
    for (const text::ChatMessage& message : *copy.messages) {
      v1::ChatMessage& added = *chat.add_messages();
      added.set_role(message.role);
      added.set_content(message.content);
      if (message.literal) {
        content.add_literal_messages(static_cast<uint32_t>(chat.messages_size() - 1));
      }
    }
  }
  if (copy.answer_len.has_value()) content.set_answer_tokens(ToWireCount(*copy.answer_len));
  content.set_content_sha256(copy.content_sha256);
  return content;
}

}  // namespace

absl::StatusOr<engine::SessionParams> FromProto(v1::CreateSessionRequest request,
                                                const engine::ContextCaller& caller) {
  engine::SessionParams params{.caller = caller,
                               .model = request.model(),
                               .prefix_name = request.prefix_name(),
                               .display_name = request.display_name(),
                               .pinned = request.pinned(),
                               .salt = request.salt(),
                               .request_id = request.request_id()};
  if (request.has_ttl()) params.ttl = ToAbsl(request.ttl());
  if (request.has_content()) {
    ASSIGN_OR_RETURN(params.content, ToCopy(std::move(*request.mutable_content())));
  }
  return params;
}

absl::StatusOr<engine::SessionAppend> FromProto(v1::AppendToSessionRequest request,
                                                const engine::ContextCaller& caller) {
  engine::SessionAppend append{.caller = caller,
                               .name = request.name(),
                               .etag = request.etag(),
                               .request_id = request.request_id()};
  switch (request.content_case()) {
    case v1::AppendToSessionRequest::kText:
      append.content = std::move(*request.mutable_text());
      break;
    case v1::AppendToSessionRequest::kTokenIds:
      append.content =
          engine::TokenIds(request.token_ids().ids().begin(), request.token_ids().ids().end());
      break;
    case v1::AppendToSessionRequest::kChat: {
      ASSIGN_OR_RETURN(append.content, FromProto(std::move(*request.mutable_chat())));
      break;
    }
    case v1::AppendToSessionRequest::CONTENT_NOT_SET:
      return absl::InvalidArgumentError("content: want one of text, token_ids, chat");
  }
  return append;
}

engine::SessionFork FromProto(const v1::ForkSessionRequest& request,
                              const engine::ContextCaller& caller) {
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
  if (info.content.has_value()) *out.mutable_content() = ToContent(*info.content);
  return out;
}

v1::AppendToSessionResponse ToProto(const engine::SessionAppended& appended) {
  v1::AppendToSessionResponse out;
  *out.mutable_session() = ToProto(appended.session);
  out.set_kept_tokens(ToWireCount(appended.kept_tokens));
  return out;
}

}  // namespace quire::server
