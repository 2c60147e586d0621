#pragma once

// The wire's types and the engine's, one into the other. What the wire leaves out becomes the
// engine's own default; ranges are the engine's to check, except where its type could not hold the
// value.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/rpc/status.pb.h"

#include "engine/engine.h"
#include "quire/v1/chat.pb.h"
#include "quire/v1/control_service.pb.h"
#include "quire/v1/inference_service.pb.h"
#include "quire/v1/token_service.pb.h"

namespace quire::server {

// Everything but request_id, owner and deadline, which the call knows. InvalidArgument begins with
// the field: "prompt: want one of text, token_ids, chat".
absl::StatusOr<engine::GenerateParams> FromProto(const v1::GenerateRequest& request);
absl::StatusOr<engine::GenerateParams> FromProto(const v1::ScoreRequest& request);
// InvalidArgument when there is no message.
absl::StatusOr<engine::ChatMessages> FromProto(const v1::ChatMessages& chat);

v1::Usage ToProto(const engine::Usage& usage);
v1::Timings ToProto(const engine::Timings& timings);
v1::FinishReason ToProto(engine::FinishReason reason);
v1::ModelInfo ToProto(const engine::ModelInfo& info);
v1::GetServerInfoResponse ToProto(const engine::ServerInfo& info);
v1::GetStatsResponse ToProto(const engine::Stats& stats);
v1::Token ToProto(const engine::Piece& piece);

v1::GenerateStreamResponse ToProto(engine::TokenDelta delta);
// `samples` hold one whole sample each; request_id and model are the caller's to add.
v1::GenerateResponse ToProto(std::vector<engine::TokenDelta> samples,
                             const engine::RequestSummary& summary);

// `samples` hold one whole continuation each; the rest as above.
v1::ScoreResponse ToScores(std::vector<engine::TokenDelta> samples,
                           const engine::RequestSummary& summary);

// With its google.rpc details: the field of an InvalidArgument that begins with one, a retry delay
// for what may be tried again.
google::rpc::Status ToRpcStatus(const absl::Status& status);

}  // namespace quire::server
