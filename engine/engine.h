#pragma once

// The public interface of the engine, which takes requests and returns tokens. It is plain C++. The
// gRPC server, the tools and the tests use this header together with engine/request/.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/request/cache_map.h"
#include "engine/request/engine_info.h"
#include "engine/request/named_prefixes.h"
#include "engine/request/request.h"
#include "engine/request/sessions.h"
#include "engine/request/tenant_usage.h"
#include "text/tokenizer/input_kind.h"

namespace quire::engine {

struct Piece {
  int32_t id = 0;
  std::string piece;  // the token as the vocabulary writes it
  int64_t begin = 0;  // the piece's bytes in the text: [begin, end)
  int64_t end = 0;
};

using FlushDone = absl::AnyInvocable<void(absl::StatusOr<int64_t> num_freed_blocks) &&>;

// A handle of a submitted request. Its holder may cancel the request.
class SubmittedRequest {
 public:
  virtual ~SubmittedRequest() = default;
  virtual const std::string& request_id() const = 0;
  // Cancels the request. May be called in any state and from any thread. The sink of an unfinished
  // request gets at most one more token of each sample, then Finish(CANCELLED).
  virtual void Cancel() = 0;
};

// Thread-safe. One step thread owns the scheduler, the cache and the model. A small pool of
// frontend threads renders templates and tokenizes. The step thread calls the sinks. A frontend
// thread calls Finish of a request that ends before it reaches the step thread. Only FailAll calls
// it on another thread, and perhaps once more.
class Engine {
 public:
  // Creates an engine: reads the model, allocates memory and computes a warm-up token. An error
  // says what to change.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineConfig& config);
  // Cancels the requests that still run, then joins every thread.
  virtual ~Engine() = default;

  // Accepts one request. Never blocks. After an error the sink is never called. The errors are
  // NotFound (no such model or prefix), ResourceExhausted (too many requests wait, or a rate limit
  // of the tenant is used up; see engine/request/retry_after.h), FailedPrecondition (the prefix has
  // failed) and Unavailable (the engine drains, or the prefix is not tokenized yet). Without an
  // error, sink->Finish is called exactly once, even if the frontend refuses the request
  // (InvalidArgument), or the owner goes on running another request under the same key
  // (AlreadyExists; see RunningRequests). A turn of a session has two further errors: NotFound (no
  // such session) and Aborted (the session is in a turn, or its etag differs).
  virtual absl::StatusOr<std::shared_ptr<SubmittedRequest>> Submit(
      GenerateParams params, std::shared_ptr<TokenSink> sink) = 0;

  // Aborts the requests that `owner` runs under this key, name or id. Without an owner, aborts
  // those of all owners. Returns NotFound when there is no such request.
  virtual absl::Status Abort(std::string_view request_id,
                             std::optional<std::string_view> owner) = 0;

  // The sessions of this engine. A turn is a request with GenerateParams::session.
  virtual Sessions& sessions() = 0;

  // Runs `work`, which costs about as much as tokenizing `num_bytes` of text, on the frontend pool.
  // Returns ResourceExhausted at once when the queue of the pool is full, or when as much of the
  // tenant's work waits there as `limits` allow of waiting requests.
  virtual absl::Status RunOnFrontend(std::string_view tenant, const TenantLimits& limits,
                                     int64_t num_bytes, std::function<void()> work) = 0;
  // The next five functions run on the thread of the caller, where a base::Interrupt may stop them
  // early. They return InvalidArgument when the input is larger than max_prompt_bytes.
  virtual absl::StatusOr<std::vector<Piece>> Tokenize(std::string_view text, text::InputKind kind,
                                                      bool parse_special_tokens) const = 0;
  virtual absl::StatusOr<std::string> Detokenize(const TokenIds& ids,
                                                 bool skip_special_tokens) const = 0;
  // Returns the bytes that a token appends to a text, which may be a part of a character; nothing
  // for an id without a piece. The view is valid as long as the engine.
  virtual std::string_view TokenBytes(int32_t id) const = 0;
  // Returns FailedPrecondition when the model has no template that can be used.
  virtual absl::StatusOr<std::string> ApplyChatTemplate(const ChatMessages& messages,
                                                        bool add_generation_prompt) const = 0;
  // Returns the tokens that a request makes of the conversation.
  virtual absl::StatusOr<TokenIds> TokenizeChat(const ChatMessages& messages,
                                                bool add_generation_prompt) const = 0;

  // The named prefixes of this engine, which lives longer than any use of them.
  virtual NamedPrefixes& prefixes() = 0;

  virtual const ModelInfo& model_info() const = 0;
  virtual const ServerInfo& server_info() const = 0;
  virtual Stats stats() const = 0;
  virtual Liveness liveness() const = 0;
  // Returns the use of one tenant, under these limits.
  virtual TenantUsage tenant_usage(std::string_view tenant, const TenantLimits& limits) const = 0;
  virtual TenantUsages tenant_usages() const = 0;

  // Makes the prefix cache forget its contents. Requests submitted from now on reuse nothing that
  // was computed before. Frees the cached blocks over the next steps. Running requests keep their
  // blocks. Calls `done` once, on the step thread or on the thread of the caller, with the number
  // of blocks freed or with an error. The error is ResourceExhausted if too many commands wait, and
  // Unavailable if the engine stops. `done` must not wait.
  virtual void FlushPrefixCache(FlushDone done) = 0;

  // Makes a picture of what the KV cache holds, over the next steps, or gives one that is not older
  // than 250 ms. Calls `done` as FlushPrefixCache does, with the same errors.
  virtual void GetCacheMap(CacheMapDone done) = 0;

  // Refuses new requests with Unavailable from now on; accepted ones continue.
  virtual void StartDrain() = 0;
  // Waits until nothing is queued or running. Returns DeadlineExceeded when `timeout` passes first.
  virtual absl::Status WaitIdle(absl::Duration timeout) = 0;

  // Ends every request with `status`, on the thread of the caller, although the step thread hangs.
  // Refuses new requests, and logs the latest steps. The engine cannot be used or destroyed
  // afterwards: the caller must end the process.
  virtual void FailAll(const absl::Status& status) = 0;
};

}  // namespace quire::engine
