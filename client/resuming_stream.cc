#include "client/resuming_stream.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"

namespace quire::client {
namespace {

constexpr absl::Duration kFirstDelay = absl::Milliseconds(100);
constexpr absl::Duration kLongestDelay = absl::Seconds(5);

// Proxies report a lost connection as UNKNOWN or INTERNAL, with these words of gRPC and HTTP/2.
bool IsLostConnection(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return true;
  return (absl::IsUnknown(status) || absl::IsInternal(status)) &&
         (absl::StrContains(status.message(), "Stream removed") ||
          absl::StrContains(status.message(), "RST_STREAM"));
}

// Returns true if a try to resume that brought no message may be repeated. The server may be full
// just after its restart, and it may not have noticed yet that the stream before broke, so that a
// session is still in its turn.
bool MayComeLater(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsAlreadyExists(status) ||
         absl::IsAborted(status);
}

absl::Duration DelayBefore(int32_t try_number, const absl::Status& status) {
  // So that the clients of a server that restarts do not all come at once.
  thread_local std::minstd_rand random{std::random_device{}()};
  const absl::Duration delay = RetryDelay(status).value_or(
      std::min(kFirstDelay * (1 << std::min(try_number, 10)), kLongestDelay));
  return delay * std::uniform_real_distribution(0.8, 1.2)(random);
}

}  // namespace

ArrivedAnswer::ArrivedAnswer(v1::GenerateRequest request) : request_(std::move(request)) {}

v1::GenerateRequest ArrivedAnswer::NextRequest() const {
  v1::GenerateRequest request = request_;
  request.mutable_output()->set_resumable(true);
  if (!can_resume()) return request;
  request.mutable_sampling()->set_seed(seed_);
  const uint32_t n = request.sampling().has_n() ? request.sampling().n() : 1;
  for (uint32_t k = 0; k < n; ++k) {
    v1::TokenIds& ids = *request.add_resume_token_ids();
    const auto it = samples_.find(k);
    if (it != samples_.end()) ids.mutable_ids()->Add(it->second.ids.begin(), it->second.ids.end());
    request.add_resume_text_bytes(it != samples_.end() ? it->second.text_bytes : 0);
  }
  request.set_resume_model_digest(model_digest_);
  request.set_resume_numerics(numerics_);
  if (resolved_) *request.mutable_resume_resolved() = *resolved_;
  return request;
}

void ArrivedAnswer::MoveTo(const v1::Session& session) {
  request_.set_session_name(session.name());
  request_.set_session_etag(session.etag());
}

void ArrivedAnswer::BeginStream() {
  is_first_stream_ = num_streams_++ == 0;
  num_prompt_logprobs_stream_ = 0;
}

std::optional<v1::GenerateStreamResponse> ArrivedAnswer::Take(v1::GenerateStreamResponse message) {
  if (!message.model_digest().empty() && !can_resume()) {
    model_digest_ = message.model_digest();
    numerics_ = message.numerics();
    if (message.has_resolved()) resolved_ = message.resolved();
    seed_ = message.seed() - message.index();
  }
  Sample& sample = samples_[message.index()];
  sample.ids.insert(sample.ids.end(), message.token_ids().begin(), message.token_ids().end());
  num_tokens_ += message.token_ids_size();
  sample.text_bytes += message.text_delta().size();
  if (sample.has_ended) {  // its end is sent again
    message.clear_finish_reason();
    message.clear_stop();
  }
  sample.has_ended |= message.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  // A prompt without a token of the answer is scored again from its beginning.
  const int known = std::clamp(num_prompt_logprobs_ - num_prompt_logprobs_stream_, 0,
                               message.prompt_logprobs_size());
  num_prompt_logprobs_stream_ += message.prompt_logprobs_size();
  num_prompt_logprobs_ = std::max(num_prompt_logprobs_, num_prompt_logprobs_stream_);
  message.mutable_prompt_logprobs()->DeleteSubrange(0, known);
  if (!request_.output().token_ids() && !request_.output().resumable()) message.clear_token_ids();

  const bool is_empty = message.text_delta().empty() && message.token_ids().empty() &&
                        message.logprobs().empty() && message.prompt_logprobs().empty() &&
                        message.finish_reason() == v1::FINISH_REASON_UNSPECIFIED &&
                        !message.has_usage();
  if (is_empty && !is_first_stream_) return std::nullopt;
  return message;
}

absl::Status RunResuming(const v1::GenerateRequest& request, const ResumeOptions& options,
                         const StreamRunner& runner, const OnAnswer& on_answer) {
  if (options.tries <= 0) return runner.run(request, options.timeout, on_answer);
  const absl::Time deadline =
      options.timeout ? runner.now() + *options.timeout : absl::InfiniteFuture();
  ArrivedAnswer answer(request);
  std::optional<absl::Duration> left = options.timeout;
  for (int32_t num_vain = 0;;) {
    const int64_t num_tokens = answer.num_tokens();
    bool any_message = false;
    // The last words of a sample that was cut short. They have text that was held back, which a
    // resumed stream sends in its own time, so they count only if the answer ends here.
    std::vector<v1::GenerateStreamResponse> last_words;
    answer.BeginStream();
    absl::Status status =
        runner.run(answer.NextRequest(), left, [&](const v1::GenerateStreamResponse& message) {
          any_message = true;
          if (message.finish_reason() == v1::FINISH_REASON_ABORT) {
            last_words.push_back(message);
          } else if (const auto news = answer.Take(message)) {
            on_answer(*news);
          }
        });
    if (answer.num_tokens() > num_tokens) num_vain = 0;
    const bool wants_session =
        !any_message && (absl::IsNotFound(status) || absl::IsAborted(status));
    if (wants_session && options.reopen && num_vain < options.tries) {
      const absl::StatusOr<v1::Session> session = options.reopen();
      if (session.ok()) {
        answer.MoveTo(*session);
        ++num_vain;
        continue;
      }
      if (IsLostConnection(session.status()) || answer.can_resume()) status = session.status();
    }
    const absl::Duration delay = DelayBefore(num_vain, status);
    const bool can_go_on = answer.can_resume() || options.begins_again;
    const bool may_resume = can_go_on && num_vain < options.tries &&
                            (IsLostConnection(status) || (!any_message && MayComeLater(status))) &&
                            runner.now() + delay < deadline;
    if (status.ok() || !may_resume || !runner.wait(delay)) {
      for (const v1::GenerateStreamResponse& message : last_words) {
        if (const auto news = answer.Take(message)) on_answer(*news);
      }
      return status;
    }
    ++num_vain;
    if (options.timeout) left = deadline - runner.now();
  }
}

absl::Status StreamResuming(Connection& connection, v1::GenerateRequest request,
                            ResumeOptions options, const OnAnswer& on_answer) {
  const int64_t num_cancels = connection.num_cancels();
  options.timeout = connection.options().timeout;
  if (options.tries > 0 && !request.session_name().empty() && request.session_etag().empty()) {
    v1::GetSessionRequest get;
    get.set_name(request.session_name());
    v1::Session session;
    // Without the etag, the turn cannot be resumed.
    if (connection.GetSession(get, &session).ok()) request.set_session_etag(session.etag());
  }
  return RunResuming(
      request, options,
      {.run =
           [&](const v1::GenerateRequest& next, std::optional<absl::Duration> timeout,
               const OnAnswer& on_message) {
             return connection.Stream(
                 next,
                 [&](StreamCall&, const v1::GenerateStreamResponse& message) {
                   on_message(message);
                 },
                 timeout);
           },
       .wait = [&](absl::Duration delay) { return connection.Wait(delay, num_cancels); },
       .now = [] { return absl::Now(); }},
      on_answer);
}

void AddResumeFlag(base::FlagSet& flags, int32_t* tries) {
  flags.Add("resume_tries", "N",
            "if the stream breaks, resume it; give up after N tries without a new token; 0: never "
            "(default 5)",
            tries);
}

}  // namespace quire::client
