#pragma once

// A client's request, from the wire to the last token.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "engine/request/cache_window.h"
#include "engine/request/sampling_params.h"
#include "engine/request/tenant_limits.h"
#include "engine/request/token_set.h"
#include "engine/request/token_sink.h"
#include "text/chat_message.h"

namespace quire::engine {

using TokenIds = std::vector<int32_t>;
using ChatMessages = std::vector<text::ChatMessage>;

// The request as it came in, before the frontend.
struct GenerateParams {
  std::string request_id;  // empty: made by the engine
  std::string model;       // empty: the served one
  std::string owner;       // the caller whose id it is and who may abort it; "": everybody
  std::variant<std::string, TokenIds, ChatMessages> prompt;
  // If not empty, nothing is drawn: sample k is the k-th of these, and its result is its ids and,
  // for each, the log-probability and the likeliest token. `sampling`, `stop` and `output` are
  // ignored. The frontend decides which tokens a text becomes.
  std::vector<std::variant<std::string, TokenIds>> continuations;
  SamplingParams sampling;
  StopParams stop;
  OutputOptions output;
  bool answers_at_once = false;  // in one message, kept in memory until the end
  CacheParams cache;
  SchedParams sched;
  TenantLimits limits;                           // of sched.tenant
  absl::Time deadline = absl::InfiniteFuture();  // a date
};

// After the frontend: valid, tokenized, feasible. Shared by the server's reactor and the step
// thread; constant but for `cancelled`.
struct Request {
  GenerateParams params;
  TokenIds prompt_ids;
  std::string prompt_text;                 // for echo
  std::string prompt_rest;                 // its last bytes, if the output completes their
                                           // character
  std::vector<TokenIds> continuation_ids;  // of params.continuations; none is empty
  TokenSet allowed_ids;                    // of sampling.allowed_token_ids; empty: all
  TokenSet stop_ids;                       // of stop.stop_token_ids
  int32_t max_tokens = 0;                  // resolved: limited by the context
  CacheWindow cache_window;                // resolved
  uint64_t seed = 0;                       // resolved
  // Times of the engine's clock, which cannot be set, unlike a wall clock.
  absl::Time arrival;
  absl::Time deadline = absl::InfiniteFuture();  // resolved
  std::shared_ptr<TokenSink> sink;

  // True if its tokens are given, not drawn.
  bool is_scoring() const { return !continuation_ids.empty(); }

  // Set in any state, by any thread; the thread that has the request ends it.
  std::atomic<bool> cancelled = false;
};

// The statuses of requests that are cut short.
absl::Status CancelledStatus();
absl::Status PastDeadlineStatus();
// OK while the request is neither cancelled nor past its deadline; else one of these.
absl::Status StillWanted(const Request& request, absl::Time now);

}  // namespace quire::engine
