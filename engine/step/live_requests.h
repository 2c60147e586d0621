#pragma once

// Holds the requests of the step thread, each from admission until all its samples have ended.
// Counts the tokens of each request and notes the times of its progress. Also keeps the messages
// that wait for the sinks.

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "engine/admission/step_channel.h"
#include "engine/output/beam_search.h"
#include "engine/request/request.h"
#include "engine/request/sequence.h"
#include "engine/request/token_delta.h"
#include "engine/step/engine_metrics.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

struct LiveRequest {
  std::shared_ptr<Request> request;
  AdmissionTicket ticket;  // released when the request first runs
  TenantCharge charge;     // settled when the request has ended
  CacheLease lease;        // released when the request has ended
  SequenceId first_id = 0;
  int32_t num_left = 0;      // samples that have not ended
  bool forked = false;       // each sample is a sequence of its own
  bool has_begun = false;    // the sink has a delta
  int64_t answer_bytes = 0;  // of an answer that is one message, so far
  RequestSummary summary;
  std::unique_ptr<BeamSearch> beam_search;  // of a request with beams
  absl::Time first_scheduled = absl::InfinitePast();
  absl::Time first_token = absl::InfinitePast();
  absl::Time last_token = absl::InfinitePast();
  int64_t prompt_logprobs_sent = 0;  // the last prompt position that was sent
  // The tokens of the prompt that were read from disk for it.
  int64_t disk_begin = 0;
  int64_t disk_end = 0;
  absl::Status status;  // the error that ended the request early
};

// To be used only on the step thread.
class LiveRequests {
 public:
  // `metrics` and `tokenizer` must outlive this.
  LiveRequests(EngineMetrics& metrics, const text::Tokenizer& tokenizer)
      : metrics_(metrics), tokenizer_(tokenizer) {}

  // Adds a request and gives its samples, or its beams, the sequence ids from first_id on.
  // References to a live request are valid until Take().
  LiveRequest& Add(AdmittedRequest admitted);
  // Queues what a stream has at admission: the first delta of a stream that can be resumed and, of
  // a resumed request, what its samples released and did not send. Counts the tokens that were
  // given and the samples that have ended.
  void NoteAdmitted(LiveRequest& live);
  LiveRequest& Of(const Sequence& sequence) { return live_.at(sequence.request.get()); }
  // Returns nullptr when the request has ended.
  LiveRequest* Find(const Request& request);
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (auto& [request, live] : live_) visit(live);
  }

  // Notes that `sequence` is in a plan.
  void NoteScheduled(const Sequence& sequence, absl::Time now);
  void NoteTokens(LiveRequest& live, int64_t num_tokens, absl::Time now);
  // Keeps a message until Emit(). Emit() puts all messages into their sinks. If the request asked
  // for usage, a message gets the usage at the time of Emit().
  void Queue(LiveRequest& live, TokenDelta delta);
  // Returns the requests whose answers have become too large for one message. They have that as
  // their status, their messages are dropped, and the caller must end them.
  std::vector<LiveRequest*> Emit();
  // Puts a message into the request's sink now. The first one of a stream says what was resolved.
  // Returns false if the answer is too large for one message.
  bool Put(LiveRequest& live, TokenDelta delta);
  // Removes and returns a request whose samples have all ended, and completes its summary.
  LiveRequest Take(LiveRequest& live, absl::Time now);

  bool empty() const { return live_.empty(); }
  int64_t size() const { return std::ssize(live_); }
  int64_t num_unstarted() const { return num_unstarted_; }  // requests that were never in a plan

 private:
  struct Emission {
    LiveRequest* live = nullptr;
    TokenDelta delta;
  };

  EngineMetrics& metrics_;
  const text::Tokenizer& tokenizer_;
  std::unordered_map<const Request*, LiveRequest> live_;
  SequenceId next_sequence_id_ = 1;
  int64_t num_unstarted_ = 0;
  std::vector<Emission> emissions_;
};

}  // namespace quire::engine
