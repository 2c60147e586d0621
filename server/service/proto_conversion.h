#pragma once

// Converts between protobuf messages and the engine's types. A field that is absent from a message
// gets the engine's default. The engine checks ranges; this file checks only that the engine's type
// can hold the value.

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/engine.h"
#include "engine/request/named_prefixes.h"
#include "quire/v1/chat.pb.h"
#include "quire/v1/control_service.pb.h"
#include "quire/v1/inference_service.pb.h"
#include "quire/v1/prefix_service.pb.h"
#include "quire/v1/tenant_service.pb.h"
#include "quire/v1/token_service.pb.h"
#include "text/tokenizer/input_kind.h"

namespace quire::server {

// Converts all fields except request_id, owner and deadline, which the RPC handler sets. The
// message of an InvalidArgument begins with the field's name, as in "prompt: want one of text,
// token_ids, chat". The texts of a request that is moved here are not copied.
absl::StatusOr<engine::GenerateParams> FromProto(v1::GenerateRequest request);
absl::StatusOr<engine::GenerateParams> FromProto(v1::ScoreRequest request);
// Takes the content of a new prefix out of `request`. Returns InvalidArgument if it has none.
absl::StatusOr<engine::PromptContent> TakeContent(v1::CreatePrefixRequest& request);
// Returns InvalidArgument for an unknown use.
absl::StatusOr<text::InputKind> KindOf(const v1::TokenizeRequest& request);
// Returns InvalidArgument when `chat` has no message.
absl::StatusOr<engine::ChatMessages> FromProto(v1::ChatMessages chat);
// The same, also for no message.
engine::ChatMessages ToMessages(v1::ChatMessages chat);

// Returns NotFound unless `model` is empty or names the served model.
absl::Status CheckModel(const engine::Engine& engine, std::string_view model);

// Returns InvalidArgument unless `name`, the value of `field`, has the form of a prefix's name.
absl::Status CheckPrefixName(std::string_view field, std::string_view name);

// Converts a count of the engine to uint32, the type of counts in messages. A count that does not
// fit becomes the largest uint32.
uint32_t ToWireCount(int64_t value);

v1::Usage ToProto(const engine::Usage& usage);
v1::Timings ToProto(const engine::Timings& timings);
v1::FinishReason ToProto(engine::FinishReason reason);
v1::ModelInfo ToProto(const engine::ModelInfo& info);
v1::GetServerInfoResponse ToProto(const engine::ServerInfo& info);
// Says in an answer of which model and which family of bits it is.
template <typename Answer>
void SetIdentity(const engine::ServerInfo& info, Answer& answer) {
  answer.set_model_digest(info.model_digest);
  answer.set_numerics(info.answer_numerics);
}
v1::GetStatsResponse ToProto(const engine::Stats& stats);
v1::Token ToProto(const engine::Piece& piece);
v1::Tenant ToProto(const engine::TenantUsage& usage);

// `engine` gives the bytes of tokens where a request wants them.
v1::GenerateStreamResponse ToProto(engine::TokenDelta delta, const engine::Engine& engine);
// Each of `samples` is a complete sample. The caller adds request_id and model.
v1::GenerateResponse ToProto(std::vector<engine::TokenDelta> samples,
                             const engine::RequestSummary& summary, const engine::Engine& engine);

// Each of `samples` is a complete continuation. The caller adds request_id and model.
v1::ScoreResponse ToScores(std::vector<engine::TokenDelta> samples,
                           const engine::RequestSummary& summary, const engine::Engine& engine);

}  // namespace quire::server
