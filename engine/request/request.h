#pragma once

// A client's request, from the wire to the last token.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "engine/request/cache_window.h"
#include "engine/request/prefix_content.h"
#include "engine/request/sampling_params.h"
#include "engine/request/tenant_limits.h"
#include "engine/request/token_sink.h"
#include "kernels/token_set.h"
#include "text/chat_message.h"

namespace quire::engine {

using TokenIds = std::vector<int32_t>;
using ChatMessages = std::vector<text::ChatMessage>;
// Text, token ids, or a conversation, as a client gives them.
using PromptContent = std::variant<std::string, TokenIds, ChatMessages>;

// These return the number of bytes of text to tokenize. A token id counts as one byte.
inline int64_t NumBytes(const std::string& text) { return std::ssize(text); }
inline int64_t NumBytes(const TokenIds& ids) { return std::ssize(ids); }
int64_t NumBytes(const ChatMessages& messages);
int64_t NumBytes(const PromptContent& prompt);

// The part of a broken stream that arrived. The tokens count for positions, penalties, lengths and
// stops as if they were drawn now, and are not sent again.
struct ResumeParams {
  std::vector<TokenIds> token_ids;   // by sample; may be empty
  std::vector<uint64_t> text_bytes;  // by sample: bytes of text, the echo included
  std::string model_digest;          // of the broken stream, as is numerics
  std::string numerics;
  // True: stop.max_tokens is what the stream had, not a bound.
  bool max_tokens_is_resolved = false;
};

struct ReplayedSample;  // engine/output/replay.h

// The use of a session by a request; see sessions.h. The prompt follows the session's tokens, and
// may be an empty list of ids.
struct SessionUse {
  std::string name;  // empty: no session
  std::string etag;  // if not empty, must be the session's
  // If true, the prompt becomes part of the session and its K and V are computed, but nothing is
  // generated: an append, whose result is kept under append_id if that is not empty.
  bool computes_only = false;
  std::string append_id;
};

// The pin of a session, from one turn to the next. Shared by the session and its turns.
struct SessionPin {
  uint64_t id = 0;  // of the pin; no prefix has it
  // Tokens that are pinned. Written by the step thread before the end of a turn that succeeds.
  std::atomic<int64_t> num_tokens = 0;
};

// The request as it came in, before the frontend.
struct GenerateParams {
  std::string request_id;  // empty: made by the engine
  // False: request_id is a key, under which the owner runs one request at a time. True: it is a
  // name for logs and for Abort, which any number of requests may have.
  bool id_is_name = false;
  // Called by Submit, before it uses the sink, with the id under which the request runs.
  std::function<void(const std::string& id)> on_id;
  std::string model;  // empty: the served model
  std::string owner;  // the caller that owns the id and may abort the request; "": all callers
  PromptContent prompt;
  SessionUse session;
  // If not empty, no tokens are drawn: sample k is the k-th continuation. The result of a sample is
  // its token ids and, for each id, the log-probability and the likeliest token. `sampling` and
  // `stop` have no effect. In `output`, only prompt_logprobs, logprob_text and usage_per_chunk have
  // an effect. Frontend::Prepare tokenizes the texts.
  std::vector<std::variant<std::string, TokenIds>> continuations;
  SamplingParams sampling;
  StopParams stop;
  OutputOptions output;
  std::optional<ResumeParams> resume;
  bool answers_at_once = false;  // the answer is one message, kept in memory until the end
  // Of an answer that is one message, as AnswerBytes counts them; 0: any number. The request ends
  // when it has more.
  int64_t max_answer_bytes = 0;
  CacheParams cache;
  SchedParams sched;
  // The named prefix after which the prompt follows; empty: none. A text is tokenized together with
  // the prefix's, and messages are rendered after the prefix's. Token ids follow its ids.
  std::string prefix_name;
  TenantLimits limits;                           // the limits of sched.tenant
  absl::Time deadline = absl::InfiniteFuture();  // by the wall clock

  // True if the samples of the answer are chosen by their scores, or ordered by them. A stream
  // sends tokens before it could choose.
  bool ranks_samples() const {
    return sampling.best_of.has_value() && answers_at_once && continuations.empty();
  }
};

// A request after the frontend: valid, tokenized, feasible. The server's reactor and the step
// thread share it, so the frontend is the last to change any member but `cancelled` and
// `pinned_ids`.
struct Request {
  GenerateParams params;
  std::string id;  // params.request_id; behind a name that is in use, "~" and a number
  std::shared_ptr<const PrefixContent> prefix;  // of params.prefix_name; null: none
  // If not 0, this is the engine's own request for a named prefix: it computes prompt_ids and pins
  // them under this id. No token is drawn.
  uint64_t pins = 0;
  // The blocks of group 0 that the pin holds. Set by the step thread before Finish(OK).
  std::vector<int32_t> pinned_ids;
  // If not null, the turn of a pinned session: what it commits is pinned when it succeeds.
  std::shared_ptr<SessionPin> session_pin;
  int64_t num_kept_blocks = 0;  // leading blocks of the prompt that its session's pin holds
  TokenIds prompt_ids;          // those of the prefix first
  std::string prompt_text;      // for echo
  // The bytes of an unfinished character at the end of a prompt echoed from token ids. The output
  // may complete it.
  std::string prompt_rest;
  std::vector<TokenIds> continuation_ids;  // tokens of params.continuations; none is empty
  kernels::TokenSet allowed_ids;           // the set of sampling.allowed_token_ids; empty: all
  kernels::TokenSet stop_ids;              // the set of stop.stop_token_ids
  int32_t num_candidates = 0;              // resolved: continuations that a beam search looks at
  int32_t max_tokens = 0;                  // resolved: limited by the context
  CacheWindow cache_window;                // resolved
  uint64_t seed = 0;                       // resolved
  // The samples of a request that is resumed after at least one token. ReplayOutput makes them, and
  // the step thread takes over their output.
  std::vector<std::shared_ptr<ReplayedSample>> replayed;
  // `arrival` and `deadline` are times of the engine's clock. Unlike a wall clock, this clock
  // cannot be set.
  absl::Time arrival;
  absl::Time deadline = absl::InfiniteFuture();  // resolved
  std::shared_ptr<TokenSink> sink;

  // True if the tokens of the samples are given, not drawn.
  bool is_scoring() const { return !continuation_ids.empty(); }

  // True if the tokens are found by a beam search.
  bool has_beams() const { return params.sampling.beam.has_value(); }

  // True if the samples go on after tokens that were given.
  bool is_resumed() const { return !replayed.empty(); }

  // Any thread may set this flag at any time. The thread that works on the request then ends the
  // request.
  std::atomic<bool> cancelled = false;
};

// The statuses of requests that are cut short.
absl::Status CancelledStatus();
absl::Status PastDeadlineStatus();
// Returns the status above that applies if the request is cancelled or past its deadline, otherwise
// OK.
absl::Status StillWanted(const Request& request, absl::Time now);

}  // namespace quire::engine
