#pragma once

// A stream that goes on after its connection broke: the client sends what it has, and the server,
// or another one, continues to the byte (GenerateRequest.resume_token_ids).

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/flags/flag_set.h"
#include "client/connection.h"
#include "quire/v1/inference_service.pb.h"
#include "quire/v1/session_service.pb.h"

namespace quire::client {

using OnAnswer = std::function<void(const v1::GenerateStreamResponse&)>;

// The part of an answer that arrived. Not thread-safe.
class ArrivedAnswer {
 public:
  // `request` is the user's.
  explicit ArrivedAnswer(v1::GenerateRequest request);

  // Returns the request for the rest of the answer; at first, the user's, with output.resumable.
  v1::GenerateRequest NextRequest() const;
  // Makes the next requests turns of `session`.
  void MoveTo(const v1::Session& session);
  // To be called before the messages of each stream.
  void BeginStream();
  // Takes the next message of the stream. Returns what of it is new to the user; nullopt: nothing.
  std::optional<v1::GenerateStreamResponse> Take(v1::GenerateStreamResponse message);
  // True if the server has said what a resume needs.
  bool can_resume() const {
    const bool is_turn = !request_.session_name().empty();
    return !model_digest_.empty() && (!is_turn || !request_.session_etag().empty());
  }
  int64_t num_tokens() const { return num_tokens_; }  // of all samples

 private:
  struct Sample {
    std::vector<int32_t> ids;
    uint64_t text_bytes = 0;
    bool has_ended = false;
  };

  v1::GenerateRequest request_;
  std::map<uint32_t, Sample> samples_;
  std::string model_digest_;
  std::string numerics_;
  std::optional<v1::ResolvedParams> resolved_;  // absent: the server sends none
  uint64_t seed_ = 0;
  int64_t num_tokens_ = 0;
  int num_prompt_logprobs_ = 0;         // that the user has
  int num_prompt_logprobs_stream_ = 0;  // of the present stream
  bool is_first_stream_ = false;
  int64_t num_streams_ = 0;
};

inline constexpr int32_t kResumeTries = 5;

struct ResumeOptions {
  // After this many tries in a row that brought no new token, the error of the last one is
  // returned. Not positive: nothing is resumed.
  int32_t tries = kResumeTries;
  std::optional<absl::Duration> timeout;  // of all streams together; absent: none
  bool begins_again = false;  // a stream that broke before its first message is begun again
  // If not empty: called when a turn's session is gone or has changed, for example by the turn
  // itself, whose end got lost. Returns a session as the turn's was before the turn.
  std::function<absl::StatusOr<v1::Session>()> reopen = {};
};

// How streams are run, and how time passes between them.
struct StreamRunner {
  std::function<absl::Status(const v1::GenerateRequest&, std::optional<absl::Duration> timeout,
                             const OnAnswer&)>
      run;
  std::function<bool(absl::Duration)> wait;  // false: the user gave up
  std::function<absl::Time()> now;
};

// Runs a stream to its end. Resumes it when it breaks (UNAVAILABLE, or a lost connection) after its
// first message. A turn of a session must name the session's etag. Waits before each try: as long
// as the server asks for, else 0.1 s x 2^i, at most 5 s, and up to a fifth more or less. Every
// message goes to `on_answer` once, however often the stream breaks.
absl::Status RunResuming(const v1::GenerateRequest& request, const ResumeOptions& options,
                         const StreamRunner& runner, const OnAnswer& on_answer);

// The same over `connection`, with the timeout of its options. Asks for the session's etag, if a
// turn does not name it. Connection::CancelAll ends it.
absl::Status StreamResuming(Connection& connection, v1::GenerateRequest request,
                            ResumeOptions options, const OnAnswer& on_answer);

// Declares --resume_tries. `tries` must outlive flags.Parse.
void AddResumeFlag(base::FlagSet& flags, int32_t* tries);

}  // namespace quire::client
