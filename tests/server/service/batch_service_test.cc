// Tests InferenceService.GenerateBatch.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"

#include "base/clock.h"
#include "tests/server/memory_server.h"

namespace quire::server {
namespace {

using quire::testing::HasDetails;
using quire::testing::MemoryClient;
using quire::testing::MemoryServer;
using quire::testing::Outcome;
using quire::testing::Prompt;
using quire::testing::ReadAll;

v1::GenerateBatchRequest Requests(int count, uint32_t max_tokens = 3) {
  v1::GenerateBatchRequest batch;
  for (int i = 0; i < count; ++i) {
    v1::GenerateRequest& request = *batch.add_requests();
    request = Prompt();
    request.mutable_stop()->set_max_tokens(max_tokens);
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(i));
  }
  return batch;
}

TEST(BatchServiceTest, AnswersEachAsGenerateWould) {
  MemoryServer server;
  MemoryClient client(server);
  v1::GenerateBatchRequest batch = Requests(70);
  batch.mutable_requests(1)->mutable_sampling()->set_n(2);
  batch.mutable_requests(1)->mutable_output()->set_token_ids(true);
  batch.mutable_requests(2)->set_request_id("mine");
  auto call = client.GenerateBatch(batch, {.metadata = {{"x-request-id", "nightly"}}});
  std::map<uint32_t, v1::GenerateBatchResponse> answers;
  for (auto& answer : ReadAll(*call)) answers[answer.index()] = answer;
  const Outcome outcome = call->Finish();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.initial_metadata.find("x-request-id")->second, "nightly");
  ASSERT_EQ(answers.size(), 70u);
  for (uint32_t i = 0; i < 70; ++i) {
    ASSERT_TRUE(answers[i].has_response()) << answers[i].DebugString();
    const v1::GenerateResponse& response = answers[i].response();
    EXPECT_EQ(response.request_id(), i == 2 ? "mine" : std::string(absl::StrCat("nightly-", i)));
    EXPECT_EQ(response.model(), "fake-model");
    ASSERT_EQ(response.completions_size(), i == 1 ? 2 : 1);
    EXPECT_EQ(response.completions(0).text(), "0:0 0:1 0:2 ");
    EXPECT_EQ(response.completions(0).seed(), i);
    EXPECT_EQ(response.completions(0).token_ids_size(), i == 1 ? 3 : 0);
    EXPECT_EQ(response.usage().completion_tokens(), i == 1 ? 6u : 3u);
  }
  EXPECT_EQ(server.counters.Get(static_cast<size_t>(Rpc::kGenerateBatch), 0), 1u);
  EXPECT_TRUE(server.open_calls.WaitUntilNone(base::SteadyNow() + absl::Seconds(10)));
}

TEST(BatchServiceTest, AFailureIsTheAnswerOfItsRequestAlone) {
  MemoryServer server;
  MemoryClient client(server);
  v1::GenerateBatchRequest batch = Requests(5);
  batch.mutable_requests(0)->mutable_sampling()->set_top_p(1.5f);
  batch.mutable_requests(1)->clear_text();
  batch.mutable_requests(2)->set_model("another");
  batch.mutable_requests(3)->set_request_id("two words");
  auto call = client.GenerateBatch(batch);
  std::map<uint32_t, v1::GenerateBatchResponse> answers;
  for (auto& answer : ReadAll(*call)) answers[answer.index()] = answer;
  ASSERT_TRUE(call->Finish().status.ok());
  const auto field_of = [&](uint32_t index) {
    Outcome outcome;
    outcome.details = answers[index].error();
    google::rpc::BadRequest bad_request;
    return HasDetails(outcome, bad_request) ? bad_request.field_violations(0).field() : "";
  };
  EXPECT_EQ(field_of(0), "sampling.top_p");
  EXPECT_EQ(field_of(1), "prompt");
  EXPECT_EQ(answers[2].error().code(), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_EQ(field_of(3), "request_id");
  EXPECT_TRUE(answers[4].has_response());
}

TEST(BatchServiceTest, RefusesABatchThatIsWrongAsAWhole) {
  MemoryServer server;
  MemoryClient client(server);
  const auto refused_field = [&](const v1::GenerateBatchRequest& batch) {
    auto call = client.GenerateBatch(batch);
    const auto answers = ReadAll(*call);
    const Outcome outcome = call->Finish();
    if (outcome.status.ok()) return std::string();
    EXPECT_TRUE(answers.empty());
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
    google::rpc::BadRequest bad_request;
    EXPECT_TRUE(HasDetails(outcome, bad_request));
    return bad_request.field_violations_size() == 1 ? bad_request.field_violations(0).field() : "";
  };
  EXPECT_EQ(refused_field(Requests(0)), "requests");
  EXPECT_EQ(refused_field(Requests(1)), "");
  EXPECT_EQ(refused_field(Requests(1024, 1)), "");
  EXPECT_EQ(refused_field(Requests(1025)), "requests");
  v1::GenerateBatchRequest batch = Requests(2);
  batch.set_max_in_flight(0);
  EXPECT_EQ(refused_field(batch), "max_in_flight");
  batch.set_max_in_flight(1);
  EXPECT_EQ(refused_field(batch), "");
  batch.set_max_in_flight(256);
  EXPECT_EQ(refused_field(batch), "");
  batch.set_max_in_flight(257);
  EXPECT_EQ(refused_field(batch), "max_in_flight");
  batch.clear_max_in_flight();
  batch.mutable_requests(0)->set_request_id("same");
  batch.mutable_requests(1)->set_request_id("same");
  EXPECT_EQ(refused_field(batch), "requests[1].request_id");
}

TEST(BatchServiceTest, RunsNoMoreThanItsBound) {
  MemoryServer server({.held = true});
  MemoryClient client(server);
  v1::GenerateBatchRequest batch = Requests(9);
  batch.set_max_in_flight(4);
  auto call = client.GenerateBatch(batch);
  ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 4; }));
  auto by_default = client.GenerateBatch(Requests(60));
  ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 36; }));
  server.engine.Release();
  EXPECT_EQ(ReadAll(*call).size(), 9u);
  EXPECT_TRUE(call->Finish().status.ok());
  EXPECT_EQ(ReadAll(*by_default).size(), 60u);
  EXPECT_TRUE(by_default->Finish().status.ok());
}

TEST(BatchServiceTest, AnEngineWithLessRoomAnswersAllTheSame) {
  MemoryServer server({.max_requests = 3});
  MemoryClient client(server);
  v1::GenerateBatchRequest batch = Requests(12);
  // The others wait for each other. The first ends last, even on a busy machine, so that one of the
  // batch always runs: it takes 1500 steps of a millisecond, and they take some 20.
  batch.mutable_requests(0)->mutable_stop()->set_max_tokens(1500);
  auto call = client.GenerateBatch(batch);
  int num_answered = 0;
  for (const auto& answer : ReadAll(*call)) num_answered += answer.has_response() ? 1 : 0;
  EXPECT_TRUE(call->Finish().status.ok());
  EXPECT_EQ(num_answered, 12);
}

TEST(BatchServiceTest, ADroppedCallEndsAll) {
  MemoryServer server({.default_max_tokens = 1 << 30});
  MemoryClient client(server);
  v1::GenerateBatchRequest batch = Requests(9, 1 << 30);
  batch.mutable_requests(8)->mutable_stop()->set_max_tokens(1);
  batch.set_max_in_flight(9);
  auto call = client.GenerateBatch(batch);
  v1::GenerateBatchResponse answer;
  ASSERT_TRUE(call->Read(answer));
  EXPECT_EQ(answer.index(), 8u);
  call->Cancel();
  EXPECT_EQ(call->Finish().status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 0; }));
  EXPECT_TRUE(server.open_calls.WaitUntilNone(base::SteadyNow() + absl::Seconds(10)));
}

TEST(BatchServiceTest, TheDeadlineIsThatOfEveryRequest) {
  MemoryServer server({.default_max_tokens = 1 << 30});
  MemoryClient client(server);
  auto call = client.GenerateBatch(Requests(5, 1 << 30), {.timeout = absl::Seconds(1)});
  ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 5; }));
  const std::vector<v1::GenerateBatchResponse> answers = ReadAll(*call);
  const absl::Status status = call->Finish().status;
  // On either side the deadline may pass first. If on the server's, each request has the error.
  if (status.ok()) {
    EXPECT_EQ(answers.size(), 5u);
    for (const v1::GenerateBatchResponse& answer : answers) {
      EXPECT_EQ(answer.error().code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
    }
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_LT(server.engine.last_params().deadline, absl::InfiniteFuture());
  EXPECT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 0; }));
}

TEST(BatchServiceTest, ADrainingServerRefusesWhatHasNotStarted) {
  MemoryServer server({.held = true});
  MemoryClient client(server);
  v1::GenerateBatchRequest batch = Requests(3);
  batch.set_max_in_flight(1);
  auto call = client.GenerateBatch(batch);
  ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 1; }));
  server.Drain();
  server.engine.Release();
  const auto answers = ReadAll(*call);
  EXPECT_TRUE(call->Finish().status.ok());
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_TRUE(answers[0].has_response());
  for (const int i : {1, 2}) {
    EXPECT_EQ(answers[i].error().code(), static_cast<int>(absl::StatusCode::kUnavailable));
  }
}

TEST(BatchServiceTest, MoreEmptyRequestsThanMemoryAllowsAreNotParsed) {
  MemoryServer server;
  MemoryClient client(server);
  v1::GenerateBatchRequest batch;
  for (int i = 0; i < 200'000; ++i) batch.add_requests();  // 400 kB on the wire
  auto call = client.GenerateBatch(batch);
  EXPECT_TRUE(ReadAll(*call).empty());
  const Outcome outcome = call->Finish();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(outcome.status.message()), ::testing::HasSubstr("bytes of memory"));
}

}  // namespace
}  // namespace quire::server
