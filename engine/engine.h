#pragma once

// The engine: requests in, tokens out. Plain C++; the gRPC server, the tools and the tests build on
// this one header (with engine/request/).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/engine_info.h"
#include "engine/request/request.h"

namespace quire::engine {

struct Piece {
  int32_t id = 0;
  std::string piece;  // as the vocabulary writes it
  int64_t begin = 0;  // bytes of the text
  int64_t end = 0;
};

// A submitted request; its holder may cancel it.
class SubmittedRequest {
 public:
  virtual ~SubmittedRequest() = default;
  virtual const std::string& request_id() const = 0;
  // May be called in any state, from any thread. At most one more token follows, then
  // Finish(CANCELLED).
  virtual void Cancel() = 0;
};

// Thread-safe. One step thread owns the scheduler, the cache and the model; a small frontend pool
// renders templates and tokenizes; sinks are called by the step thread.
class Engine {
 public:
  // Reads the model, allocates its memory, computes a warm-up token. Errors name what to change.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineConfig& config);
  // Cancels what still runs, then joins every thread.
  virtual ~Engine() = default;

  // Accepts one request; never blocks. An error means that the sink is never called:
  // NotFound (model), AlreadyExists (the owner's request id running), ResourceExhausted (queue
  // full), Unavailable (draining). Otherwise sink->Finish is called exactly once, also if the
  // frontend refuses the request (InvalidArgument).
  virtual absl::StatusOr<std::shared_ptr<SubmittedRequest>> Submit(
      GenerateParams params, std::shared_ptr<TokenSink> sink) = 0;

  // NotFound when `owner` has no such request running; without an owner, when nobody has one.
  virtual absl::Status Abort(std::string_view request_id,
                             std::optional<std::string_view> owner) = 0;

  // Runs `work`, which costs about as much as tokenizing `num_bytes` of text, on the frontend pool.
  // ResourceExhausted, at once, when its queue is full.
  virtual absl::Status RunOnFrontend(int64_t num_bytes, std::function<void()> work) = 0;
  // The next three run on the caller's thread, where a base::Interrupt may cut them short;
  // InvalidArgument beyond max_prompt_bytes.
  virtual absl::StatusOr<std::vector<Piece>> Tokenize(std::string_view text,
                                                      bool add_special_tokens,
                                                      bool parse_special_tokens) const = 0;
  virtual absl::StatusOr<std::string> Detokenize(const TokenIds& ids,
                                                 bool skip_special_tokens) const = 0;
  // FailedPrecondition when the model has no template.
  virtual absl::StatusOr<std::string> ApplyChatTemplate(const ChatMessages& messages,
                                                        bool add_generation_prompt) const = 0;

  virtual const ModelInfo& model_info() const = 0;
  virtual const ServerInfo& server_info() const = 0;
  virtual Stats stats() const = 0;
  virtual Liveness liveness() const = 0;

  // Refuses new requests with Unavailable from now on; accepted ones continue.
  virtual void StartDrain() = 0;
  // Waits until nothing is queued or running; DeadlineExceeded when `timeout` passes first.
  virtual absl::Status WaitIdle(absl::Duration timeout) = 0;
};

}  // namespace quire::engine
