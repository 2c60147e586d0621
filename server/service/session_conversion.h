#pragma once

// Converts between the messages of SessionService and the engine's types. The engine checks ranges,
// as in proto_conversion.h.

#include "absl/status/statusor.h"

#include "engine/request/sessions.h"
#include "quire/v1/session_service.pb.h"

namespace quire::server {

// Returns InvalidArgument when the content names messages that it does not have.
absl::StatusOr<engine::SessionParams> FromProto(v1::CreateSessionRequest request,
                                                const engine::ContextCaller& caller);
// Returns InvalidArgument when the request has no content.
absl::StatusOr<engine::SessionAppend> FromProto(v1::AppendToSessionRequest request,
                                                const engine::ContextCaller& caller);
engine::SessionFork FromProto(const v1::ForkSessionRequest& request,
                              const engine::ContextCaller& caller);

v1::Session ToProto(const engine::SessionInfo& info);
v1::AppendToSessionResponse ToProto(const engine::SessionAppended& appended);

}  // namespace quire::server
