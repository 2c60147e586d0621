// Tests InferenceService.Score: the answers, and the ways in which a call can end.

#include <string>

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"

#include "tests/server/memory_server.h"

namespace quire::server {
namespace {

using quire::testing::HasDetails;
using quire::testing::MemoryClient;
using quire::testing::MemoryServer;
using ::testing::StartsWith;

v1::ScoreRequest TwoContinuations() {
  v1::ScoreRequest request;
  request.set_text("hello");
  request.add_continuations()->set_text("bd");
  for (const int32_t id : {10, 7}) {
    if (request.continuations_size() == 1) request.add_continuations();
    request.mutable_continuations(1)->mutable_token_ids()->add_ids(id);
  }
  return request;
}

TEST(ScoreServiceTest, AnswersInTheOrderOfTheRequest) {
  MemoryServer server;
  MemoryClient client(server);
  v1::ScoreRequest request = TwoContinuations();
  request.mutable_cache()->set_salt("mine");
  request.mutable_sched()->set_tenant("t");
  const auto reply = client.Score(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  const v1::ScoreResponse& response = reply.response;
  EXPECT_EQ(response.model(), "fake-model");
  EXPECT_THAT(response.request_id(), StartsWith("req-"));
  ASSERT_EQ(response.scores_size(), 2);
  ASSERT_EQ(response.scores(0).tokens_size(), 2);
  EXPECT_EQ(response.scores(0).tokens(1).token_id(), 'd');
  EXPECT_FLOAT_EQ(response.scores(0).tokens(1).logprob(), -1.0f);
  EXPECT_FLOAT_EQ(static_cast<float>(response.scores(0).logprob()), -0.98f - 1.0f);
  EXPECT_TRUE(response.scores(0).is_greedy());
  EXPECT_TRUE(response.scores(1).tokens(0).is_greedy());
  EXPECT_FALSE(response.scores(1).tokens(1).is_greedy());
  EXPECT_FALSE(response.scores(1).is_greedy());
  EXPECT_EQ(response.usage().completion_tokens(), 4u);
  EXPECT_EQ(response.usage().cached_tokens(), 2u);
  EXPECT_EQ(server.engine.last_params().cache.salt, "mine");
  EXPECT_EQ(server.engine.last_params().sched.tenant, "t");
  EXPECT_EQ(server.counters.Get(static_cast<size_t>(Rpc::kScore), 0), 1u);
}

TEST(ScoreServiceTest, ErrorsNameTheFieldAndTheCure) {
  MemoryServer server({.max_requests = 1, .held = true});
  MemoryClient client(server);
  const auto refused_field = [&](const v1::ScoreRequest& request) {
    const auto reply = client.Score(request);
    EXPECT_EQ(reply.status.code(), absl::StatusCode::kInvalidArgument);
    google::rpc::BadRequest details;
    EXPECT_TRUE(HasDetails(reply, details));
    return details.field_violations_size() == 1 ? details.field_violations(0).field() : "";
  };
  v1::ScoreRequest request = TwoContinuations();
  request.clear_text();
  EXPECT_EQ(refused_field(request), "prompt");
  request = TwoContinuations();
  request.add_continuations();
  EXPECT_EQ(refused_field(request), "continuations[2]");
  request.clear_continuations();
  EXPECT_EQ(refused_field(request), "continuations");
  request = TwoContinuations();
  request.set_model("another");
  EXPECT_EQ(client.Score(request).status.code(), absl::StatusCode::kNotFound);

  auto running = client.GenerateStream(quire::testing::Prompt());
  ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 1; }));
  const auto full = client.Score(TwoContinuations());
  EXPECT_EQ(full.status.code(), absl::StatusCode::kResourceExhausted);
  google::rpc::RetryInfo retry;
  EXPECT_TRUE(HasDetails(full, retry));
  running->Cancel();
  running->Finish();
}

TEST(ScoreServiceTest, ADeadlineEndsIt) {
  MemoryServer server({.held = true});
  MemoryClient client(server);
  const auto reply = client.Score(TwoContinuations(), {.timeout = absl::Milliseconds(50)});
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 0; }));
}

}  // namespace
}  // namespace quire::server
