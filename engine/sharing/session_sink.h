#pragma once

// A turn of a session, from the request's parameters to its end.

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"

#include "engine/request/request.h"
#include "engine/request/sessions.h"
#include "engine/request/token_sink.h"
#include "engine/sharing/session_registry.h"
#include "engine/sharing/session_seam.h"

namespace quire::engine {

// The sink of a turn. Passes everything on to the client's sink, and collects the generated ids.
// The session has the turn's tokens before the client's sink gets Finish(OK), and is unchanged when
// that sink gets another status.
class SessionSink final : public TokenSink {
 public:
  // If not `wants_ids`, the client's sink gets no token ids.
  SessionSink(std::unique_ptr<SessionTurn> turn, std::shared_ptr<TokenSink> sink, bool wants_ids)
      : turn_(std::move(turn)), sink_(std::move(sink)), wants_ids_(wants_ids) {}

  const SessionTurn& turn() const { return *turn_; }
  // Replaces the prompt by the session's tokens and what the prompt adds to them. Runs on a
  // frontend thread, before all functions below but SetOnRoom. Returns InvalidArgument for a prompt
  // that cannot follow the session, and for parameters that a turn cannot have; PermissionDenied if
  // the output would show the prefix of another tenant; ResourceExhausted if all sessions together
  // have too much text.
  absl::Status Prepare(const SessionSeam& seam, Request& request);
  // Counts what the turn of a pinned session may pin, once the frontend has set max_tokens.
  absl::Status ReservePin(Request& request);

  bool CanTake(int32_t num_deltas) const override { return sink_->CanTake(num_deltas); }
  void SetOnRoom(std::function<void()> on_room) override { sink_->SetOnRoom(std::move(on_room)); }
  void Put(TokenDelta delta) override;
  void Finish(const absl::Status& status, const RequestSummary& summary) override;

 private:
  Usage WithSession(Usage usage) const;
  void Commit();

  const std::unique_ptr<SessionTurn> turn_;
  const std::shared_ptr<TokenSink> sink_;
  const bool wants_ids_;
  SessionSeam::Extended prompt_;         // constant after Prepare, as is the next
  std::optional<SessionAppend> append_;  // set if nothing is generated
  TokenIds generated_;                   // step thread only, after Prepare
};

}  // namespace quire::engine
