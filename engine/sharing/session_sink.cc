#include "engine/sharing/session_sink.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"

namespace quire::engine {
namespace {

absl::Status CheckTurn(const GenerateParams& params) {
  if (!params.continuations.empty()) {
    return absl::InvalidArgumentError("continuations: want none in a session");
  }
  if (params.sampling.beam) {
    return absl::InvalidArgumentError("sampling.beam: want it absent in a session");
  }
  if (params.sampling.best_of) {
    return absl::InvalidArgumentError(
        "sampling.best_of: want none in a session; fork the session for more samples");
  }
  if (params.sampling.n != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sampling.n: want 1 in a session, got %d; fork the session for more", params.sampling.n));
  }
  if (params.cache.window_tokens != 0) {
    return absl::InvalidArgumentError("cache.window_tokens: want 0 in a session");
  }
  if (!params.cache.salt.empty()) {
    return absl::InvalidArgumentError("cache.salt: want none in a session, which has its own");
  }
  if (!params.cache.part.empty()) {
    return absl::InvalidArgumentError("sched.tenant: want none in a session");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SessionSink::Prepare(const SessionSeam& seam, Request& request) {
  GenerateParams& params = request.params;
  RETURN_IF_ERROR(CheckTurn(params));
  const SessionContent& before = turn_->before();
  if (before.prefix() != nullptr) {
    RETURN_IF_ERROR(Frontend::CheckMayRead(before.owns_prefix(), params.output));
  }
  const bool generates = !params.session.computes_only;
  ASSIGN_OR_RETURN(prompt_, seam.Extend(turn_->before(), params.prompt, generates));
  if (!generates) {
    append_ = {.content = std::move(params.prompt), .request_id = params.session.append_id};
    // The logits of the last token are computed in any case. One token is drawn from them, and
    // dropped.
    params.sampling = {};
    params.stop = {.max_tokens = 1};
    params.output = {.text = false};
  }
  RETURN_IF_ERROR(turn_->ReserveBytes(prompt_.content.num_bytes()));
  TokenIds ids = prompt_.content.ToIds();
  // The prefix's blocks serve the turn, unless a chat template renders its messages anew.
  const auto& prefix = before.prefix();
  if (prefix != nullptr &&
      std::equal(ids.begin(), ids.begin() + std::min(std::ssize(ids), std::ssize(prefix->ids)),
                 prefix->ids.begin())) {
    request.prefix = prefix;
  }
  if (const auto& pin = turn_->pin(); pin != nullptr) {
    const int64_t pinned = pin->num_tokens.load(std::memory_order_acquire);
    request.session_pin = pin;
    request.num_kept_blocks = std::min(pinned, prompt_.kept_tokens) / seam.block_size();
  }
  params.prompt = std::move(ids);
  params.cache.salt = turn_->salt();
  params.output.token_ids = true;
  // The tokens that arrived of a resumed turn are not sent again.
  if (params.resume && !params.resume->token_ids.empty()) {
    generated_ = params.resume->token_ids.front();
  }
  return absl::OkStatus();
}

absl::Status SessionSink::ReservePin(Request& request) {
  const int64_t prompt_len = std::ssize(request.prompt_ids);
  return turn_->ReservePin({.num_kept = prompt_.kept_tokens,
                            .at_least = prompt_len,
                            .at_most = prompt_len + request.max_tokens});
}

void SessionSink::Put(TokenDelta delta) {
  generated_.insert(generated_.end(), delta.token_ids.begin(), delta.token_ids.end());
  if (!wants_ids_) delta.token_ids.clear();
  if (delta.usage.has_value()) delta.usage = WithSession(*delta.usage);
  sink_->Put(std::move(delta));
}

void SessionSink::Finish(const absl::Status& status, const RequestSummary& summary) {
  if (!append_.has_value()) turn_->CountEnd(status);
  if (!status.ok()) {
    turn_->End();
    sink_->Finish(status, summary);
    return;
  }
  Commit();  // first: a client that has read the end of one turn may begin the next one
  sink_->Finish(status, {.usage = WithSession(summary.usage), .timings = summary.timings});
}

Usage SessionSink::WithSession(Usage usage) const {
  usage.kept_tokens = prompt_.kept_tokens;
  // The last token of a prompt is computed in any case.
  const int64_t computed =
      std::min(prompt_.content.num_computed(), prompt_.content.num_tokens() - 1);
  usage.fork_recomputed_tokens = std::max(int64_t{0}, computed - usage.cached_tokens);
  return usage;
}

void SessionSink::Commit() {
  SessionContent content = prompt_.content;
  if (append_.has_value()) {
    content.NoteComputed(content.num_tokens());
    turn_->Commit(std::move(content), prompt_.kept_tokens, *append_);
    return;
  }
  content.AppendGenerated(std::move(generated_));
  // The token drawn last was no input of the model yet.
  content.NoteComputed(content.num_tokens() - 1);
  turn_->Commit(std::move(content), /*is_turn=*/true);
}

}  // namespace quire::engine
