#include "client/resuming_stream.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kText[] = "one two three";

// A server that answers each sample k with kText, one byte a token, and can be told to break. It
// keeps the tokens of an answer like the real one: what was given is not sent again.
class FakeServer {
 public:
  struct Try {
    int num_messages = 0;  // after the first, which has no content
    absl::Status status;
  };

  StreamRunner runner() {
    return {.run = [this](const v1::GenerateRequest& request, std::optional<absl::Duration> timeout,
                          const OnAnswer& on_message) { return Run(request, timeout, on_message); },
            .wait =
                [this](absl::Duration delay) {
                  delays.push_back(delay);
                  now += delay;
                  return !is_cancelled;
                },
            .now = [this] { return now; }};
  }

  std::vector<Try> tries;  // by stream; later streams do not break
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::optional<absl::Duration>> timeouts;
  std::vector<absl::Duration> delays;
  absl::Time now = absl::UnixEpoch();
  bool is_cancelled = false;
  bool aborts = false;  // a stream that breaks first cuts its samples short

 private:
  absl::Status Run(const v1::GenerateRequest& request, std::optional<absl::Duration> timeout,
                   const OnAnswer& on_message) {
    requests.push_back(request);
    timeouts.push_back(timeout);
    now += absl::Seconds(1);
    Try left = {.num_messages = 1 << 20};
    if (requests.size() <= tries.size()) left = tries[requests.size() - 1];
    if (left.num_messages < 0) return left.status;
    v1::GenerateStreamResponse first;
    first.set_request_id("id");
    first.set_seed(77);
    first.set_model_digest("digest");
    first.set_numerics("cpu-2");
    first.mutable_resolved()->set_max_tokens(300);
    on_message(first);
    const uint32_t n = std::max(1u, request.sampling().n());
    for (uint32_t k = 0; k < n; ++k) {
      const auto begin = request.resume_token_ids().empty()
                             ? 0
                             : request.resume_token_ids(static_cast<int>(k)).ids_size();
      const auto size = static_cast<int>(std::size(kText)) - 1;
      for (int i = begin; i < size || begin == size; ++i) {
        if (left.num_messages-- == 0) {
          if (aborts) on_message(Cut(k));
          return left.status;
        }
        v1::GenerateStreamResponse message;
        message.set_index(k);
        message.set_seed(77 + k);
        if (i < size) {
          message.set_text_delta(std::string(1, kText[i]));
          message.add_token_ids(kText[i]);
        }
        if (i + 1 >= size) message.set_finish_reason(v1::FINISH_REASON_LENGTH);
        on_message(message);
        if (begin == size) break;
      }
    }
    return absl::OkStatus();
  }

  static v1::GenerateStreamResponse Cut(uint32_t index) {
    v1::GenerateStreamResponse message;
    message.set_index(index);
    message.set_text_delta("held back");
    message.set_finish_reason(v1::FINISH_REASON_ABORT);
    return message;
  }
};

absl::Status Broken() { return absl::UnavailableError("Socket closed"); }

struct Answer {
  absl::Status status;
  std::map<uint32_t, std::string> texts;
  std::vector<uint32_t> ends;
  int num_token_ids = 0;
};

Answer Ask(FakeServer& server, const v1::GenerateRequest& request, ResumeOptions options = {}) {
  Answer answer;
  answer.status = RunResuming(request, options, server.runner(),
                              [&](const v1::GenerateStreamResponse& message) {
                                answer.texts[message.index()] += message.text_delta();
                                answer.num_token_ids += message.token_ids_size();
                                if (message.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
                                  answer.ends.push_back(message.index());
                                }
                              });
  return answer;
}

TEST(ResumingStreamTest, AStreamThatBreaksAnywhereIsWhole) {
  for (int cut = 0; cut <= 27; ++cut) {
    SCOPED_TRACE(cut);
    FakeServer server;
    server.tries = {{cut, Broken()}, {2, Broken()}};
    v1::GenerateRequest request;
    request.mutable_sampling()->set_n(2);
    const Answer answer = Ask(server, request);
    EXPECT_EQ(answer.status, absl::OkStatus());
    EXPECT_EQ(answer.texts.at(0), kText);
    EXPECT_EQ(answer.texts.at(1), kText);
    EXPECT_THAT(answer.ends, ElementsAre(0, 1));
    EXPECT_EQ(answer.num_token_ids, 0);  // nobody asked for them
  }
}

TEST(ResumingStreamTest, TheNextRequestHasWhatArrived) {
  FakeServer server;
  server.tries = {{15, Broken()}};
  v1::GenerateRequest request;
  request.set_text("prompt");
  request.mutable_sampling()->set_n(3);
  request.mutable_output()->set_token_ids(true);
  const Answer answer = Ask(server, request);
  EXPECT_EQ(answer.num_token_ids, 3 * 13);
  ASSERT_EQ(server.requests.size(), 2);
  EXPECT_TRUE(server.requests[0].output().resumable());
  EXPECT_THAT(server.requests[0].resume_token_ids(), IsEmpty());
  const v1::GenerateRequest& next = server.requests[1];
  EXPECT_EQ(next.text(), "prompt");
  EXPECT_EQ(next.sampling().seed(), 77);
  ASSERT_EQ(next.resume_token_ids_size(), 3);
  EXPECT_EQ(next.resume_token_ids(0).ids_size(), 13);
  EXPECT_THAT(next.resume_token_ids(1).ids(), ElementsAre('o', 'n'));
  EXPECT_THAT(next.resume_token_ids(2).ids(), IsEmpty());
  EXPECT_THAT(next.resume_text_bytes(), ElementsAre(13, 2, 0));
  EXPECT_EQ(next.resume_model_digest(), "digest");
  EXPECT_EQ(next.resume_numerics(), "cpu-2");
  EXPECT_FALSE(server.requests[0].has_resume_resolved());
  EXPECT_EQ(next.resume_resolved().max_tokens(), 300u);
}

TEST(ResumingStreamTest, WaitsLongerAndLongerAndGivesUpAfterTriesWithoutAToken) {
  FakeServer server;
  server.tries.assign(20, {-1, Broken()});
  server.tries[0] = {3, Broken()};
  server.tries[3] = {1, Broken()};  // one token, so the tries count from the beginning
  const Answer answer = Ask(server, {});
  EXPECT_EQ(answer.status, Broken());
  EXPECT_EQ(answer.texts.at(0), "one ");
  ASSERT_EQ(server.requests.size(), 4 + 5);
  const double seconds[] = {0.1, 0.2, 0.4, 0.1, 0.2, 0.4, 0.8, 1.6};
  ASSERT_EQ(server.delays.size(), std::size(seconds));
  for (size_t i = 0; i < server.delays.size(); ++i) {
    EXPECT_NEAR(absl::ToDoubleSeconds(server.delays[i]), seconds[i], 0.2 * seconds[i] + 1e-9) << i;
  }
}

TEST(ResumingStreamTest, NothingIsResumedBeforeTheFirstMessageOrForAnotherError) {
  FakeServer unreachable;
  unreachable.tries = {{-1, Broken()}};
  EXPECT_EQ(Ask(unreachable, {}).status, Broken());
  EXPECT_EQ(unreachable.requests.size(), 1);
  for (const absl::Status& status :
       {absl::FailedPreconditionError("another model"), absl::CancelledError(""),
        absl::DeadlineExceededError(""), absl::ResourceExhaustedError("too slow"),
        absl::InternalError("our bug")}) {
    FakeServer server;
    server.tries = {{3, status}};
    EXPECT_EQ(Ask(server, {}).status, status);
    EXPECT_EQ(server.requests.size(), 1);
  }
}

TEST(ResumingStreamTest, AFullServerAndAnIdStillInUseAreTriedAgain) {
  FakeServer server;
  server.tries = {{3, absl::UnknownError("Stream removed")},
                  {-1, absl::ResourceExhaustedError("full")},
                  {-1, absl::AlreadyExistsError("id")}};
  const Answer answer = Ask(server, {});
  EXPECT_EQ(answer.status, absl::OkStatus());
  EXPECT_EQ(answer.texts.at(0), kText);
}

TEST(ResumingStreamTest, WhoMayBeginAgainDoes) {
  FakeServer server;
  server.tries = {{-1, Broken()}, {-1, Broken()}, {3, Broken()}};
  const Answer answer = Ask(server, {}, {.begins_again = true});
  EXPECT_EQ(answer.status, absl::OkStatus());
  EXPECT_EQ(answer.texts.at(0), kText);
  ASSERT_EQ(server.requests.size(), 4);
  EXPECT_THAT(server.requests[2].resume_token_ids(), IsEmpty());
  EXPECT_EQ(server.requests[3].resume_token_ids_size(), 1);
  FakeServer unreachable;
  unreachable.tries.assign(20, {-1, Broken()});
  EXPECT_EQ(Ask(unreachable, {}, {.begins_again = true}).status, Broken());
  EXPECT_EQ(unreachable.requests.size(), 1 + 5);
}

// A turn of the session "old".
v1::GenerateRequest Turn() {
  v1::GenerateRequest request;
  request.set_session_name("old");
  request.set_session_etag("v1");
  return request;
}

TEST(ResumingStreamTest, ATurnGoesOnInASessionAsItsOwnWas) {
  for (const absl::Status& lost :
       {absl::NotFoundError("no such session"), absl::AbortedError("the session has changed")}) {
    FakeServer server;
    server.tries = {{3, Broken()}, {-1, lost}, {2, Broken()}};
    int num_reopened = 0;
    const auto reopen = [&] {
      ++num_reopened;
      v1::Session session;
      session.set_name("new");
      session.set_etag("v2");
      return session;
    };
    const Answer answer = Ask(server, Turn(), {.reopen = reopen});
    EXPECT_EQ(answer.status, absl::OkStatus());
    EXPECT_EQ(answer.texts.at(0), kText);
    EXPECT_EQ(num_reopened, 1);
    ASSERT_EQ(server.requests.size(), 4);
    EXPECT_EQ(server.requests[1].session_etag(), "v1");
    for (const v1::GenerateRequest& later : {server.requests[2], server.requests[3]}) {
      EXPECT_EQ(later.session_name(), "new");
      EXPECT_EQ(later.session_etag(), "v2");
    }
    EXPECT_EQ(server.requests[3].resume_token_ids(0).ids_size(), 5);
  }
}

TEST(ResumingStreamTest, ATurnWithoutASessionToGoOnInEnds) {
  const absl::Status gone = absl::NotFoundError("no such session");
  FakeServer server;
  server.tries = {{3, Broken()}, {-1, gone}};
  EXPECT_EQ(Ask(server, Turn()).status, gone);
  FakeServer forever;
  forever.tries.assign(20, {-1, gone});
  EXPECT_EQ(Ask(forever, Turn(), {.reopen = [] { return v1::Session(); }}).status, gone);
  EXPECT_EQ(forever.requests.size(), 1 + 5);
  // The reason why there is none is told once a part of the answer has come.
  const absl::Status other = absl::FailedPreconditionError("another model");
  FakeServer replaced;
  replaced.tries = {{3, Broken()}, {-1, gone}};
  EXPECT_EQ(Ask(replaced, Turn(), {.reopen = [&] { return other; }}).status, other);
  FakeServer dying;
  dying.tries = {{3, Broken()}, {-1, gone}};
  EXPECT_EQ(Ask(dying, Turn(), {.reopen = [&] { return Broken(); }}).status, absl::OkStatus());
}

TEST(ResumingStreamTest, ATurnThatStillRunsIsWaitedForAndOneWithoutAnEtagIsNotResumed) {
  FakeServer server;
  server.tries = {{3, Broken()}, {-1, absl::AbortedError("the session is in a turn")}};
  EXPECT_EQ(Ask(server, Turn()).status, absl::OkStatus());
  EXPECT_EQ(server.requests.size(), 3);
  FakeServer other;
  other.tries = {{3, Broken()}};
  v1::GenerateRequest turn = Turn();
  turn.clear_session_etag();
  EXPECT_EQ(Ask(other, turn).status, Broken());
  EXPECT_EQ(other.requests.size(), 1);
}

TEST(ResumingStreamTest, WithoutTriesTheStreamIsLeftAsItIs) {
  FakeServer server;
  server.tries = {{3, Broken()}};
  EXPECT_EQ(Ask(server, {}, {.tries = 0}).status, Broken());
  EXPECT_EQ(server.requests.size(), 1);
  EXPECT_FALSE(server.requests[0].output().has_resumable());
}

TEST(ResumingStreamTest, EachTryHasWhatIsLeftOfTheTimeout) {
  FakeServer server;
  server.tries = {{3, Broken()}, {3, Broken()}, {3, Broken()}};
  const Answer answer = Ask(server, {}, {.timeout = absl::Milliseconds(2500)});
  EXPECT_EQ(answer.status, Broken());
  ASSERT_EQ(server.timeouts.size(), 3);
  EXPECT_EQ(server.timeouts[0], absl::Milliseconds(2500));
  EXPECT_EQ(server.timeouts[1], absl::Milliseconds(1500) - server.delays[0]);
}

TEST(ResumingStreamTest, AUserWhoGivesUpIsNotKeptWaiting) {
  FakeServer server;
  server.tries = {{3, Broken()}};
  server.is_cancelled = true;
  EXPECT_EQ(Ask(server, {}).status, Broken());
  EXPECT_EQ(server.requests.size(), 1);
}

// A server that stops sends the text that it held back. A resumed stream sends it again.
TEST(ResumingStreamTest, TheLastWordsOfAStreamThatGoesOnAreDropped) {
  FakeServer server;
  server.aborts = true;
  server.tries = {{3, Broken()}};
  EXPECT_EQ(Ask(server, {}).texts.at(0), kText);
  FakeServer ends;
  ends.aborts = true;
  ends.tries = {{3, absl::CancelledError("")}};
  const Answer answer = Ask(ends, {});
  EXPECT_EQ(answer.texts.at(0), "oneheld back");
  EXPECT_THAT(answer.ends, ElementsAre(0));
}

TEST(ResumingStreamTest, LogprobsOfThePromptAreShownOnce) {
  ArrivedAnswer answer({});
  v1::GenerateStreamResponse message;
  message.set_model_digest("digest");
  for (int i = 0; i < 3; ++i) message.add_prompt_logprobs()->mutable_chosen()->set_token_id(i);
  answer.BeginStream();
  EXPECT_EQ(answer.Take(message)->prompt_logprobs_size(), 3);
  answer.BeginStream();
  EXPECT_FALSE(answer.Take(message).has_value());
  const auto rest = answer.Take(message);
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(rest->prompt_logprobs_size(), 3);
}

}  // namespace
}  // namespace quire::client
