// Tests InferenceService: the answers, and every way in which a call can end.

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"

#include "base/clock.h"
#include "tests/server/memory_server.h"

namespace quire::server {
namespace {

using quire::testing::CallOptions;
using quire::testing::HasDetails;
using quire::testing::MemoryClient;
using quire::testing::MemoryServer;
using quire::testing::Outcome;
using quire::testing::Prompt;
using quire::testing::ReadAll;

TEST(GenerateTest, AnswersWhole) {
  MemoryServer server;
  MemoryClient client(server);
  v1::GenerateRequest request = Prompt();
  request.mutable_sampling()->set_n(2);
  request.mutable_sampling()->set_seed(40);
  request.mutable_stop()->set_max_tokens(3);
  request.mutable_output()->set_token_ids(true);
  request.mutable_output()->set_top_logprobs(1);
  const auto reply = client.Generate(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  const v1::GenerateResponse& response = reply.response;
  ASSERT_EQ(response.completions_size(), 2);
  EXPECT_EQ(response.completions(0).text(), "0:0 0:1 0:2 ");
  EXPECT_EQ(response.completions(1).text(), "1:0 1:1 1:2 ");
  EXPECT_EQ(response.completions(1).token_ids(2), 102);
  EXPECT_EQ(response.completions(1).logprobs_size(), 3);
  EXPECT_EQ(response.completions(1).seed(), 41u);
  EXPECT_EQ(response.completions(1).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(response.usage().completion_tokens(), 6u);
  EXPECT_EQ(response.usage().cached_tokens(), 2u);
  EXPECT_DOUBLE_EQ(response.timings().ttft_seconds(), 0.25);
  EXPECT_EQ(response.model(), "fake-model");
  EXPECT_EQ(response.model_digest(), "fake-digest");
  EXPECT_EQ(response.numerics(), "fake-numerics");
  EXPECT_THAT(response.request_id(), ::testing::StartsWith("req-"));
  EXPECT_EQ(server.counters.Get(static_cast<size_t>(Rpc::kGenerate), 0), 1u);
}

TEST(GenerateTest, StreamsTheSame) {
  MemoryServer server;
  MemoryClient client(server);
  v1::GenerateRequest request = Prompt();
  request.mutable_sampling()->set_n(2);
  request.mutable_stop()->set_max_tokens(50);
  request.mutable_output()->set_token_ids(true);
  auto stream = client.GenerateStream(request);
  const auto messages = ReadAll(*stream);
  const Outcome outcome = stream->Finish();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  ASSERT_FALSE(messages.empty());
  std::string text[2];
  std::vector<int32_t> ids[2];
  int ended[2] = {0, 0};
  for (const v1::GenerateStreamResponse& message : messages) {
    text[message.index()] += message.text_delta();
    ids[message.index()].insert(ids[message.index()].end(), message.token_ids().begin(),
                                message.token_ids().end());
    ended[message.index()] += message.finish_reason() == v1::FINISH_REASON_LENGTH;
    const bool last = &message == &messages.back();
    EXPECT_EQ(message.has_usage(), last);
    EXPECT_EQ(message.has_timings(), last);
    EXPECT_EQ(message.request_id().empty(), &message != &messages.front());
    const bool first = &message == &messages.front();
    EXPECT_EQ(message.model_digest(), first ? "fake-digest" : "");
    EXPECT_EQ(message.numerics(), first ? "fake-numerics" : "");
    EXPECT_EQ(message.has_resolved(), first);
    EXPECT_EQ(message.resolved().max_tokens(), first ? 50u : 0u);
    EXPECT_EQ(message.resolved().sampling().n(), first ? 2u : 0u);
  }
  for (int k = 0; k < 2; ++k) {
    std::string expected;
    for (int t = 0; t < 50; ++t) {
      expected += absl::StrCat(k, ":", t, " ");
      EXPECT_EQ(ids[k][static_cast<size_t>(t)], 100 * k + t);
    }
    EXPECT_EQ(text[k], expected);
    EXPECT_EQ(ended[k], 1);
  }
  EXPECT_EQ(messages.back().usage().completion_tokens(), 100u);
}

TEST(GenerateTest, TheRequestIdIsTakenAndEchoed) {
  MemoryServer server;
  MemoryClient client(server);
  const auto echoed = [](const Outcome& outcome) {
    const auto it = outcome.initial_metadata.find("x-request-id");
    return it == outcome.initial_metadata.end() ? "" : it->second;
  };
  v1::GenerateRequest request = Prompt();
  const CallOptions with_metadata{.metadata = {{"x-request-id", "from-metadata"}}};
  EXPECT_EQ(echoed(client.Generate(request, with_metadata)), "from-metadata");
  EXPECT_EQ(server.engine.last_params().request_id, "from-metadata");
  request.set_request_id("from-field");
  const auto reply = client.Generate(request, with_metadata);
  EXPECT_EQ(echoed(reply), "from-field");
  EXPECT_EQ(reply.response.request_id(), "from-field");
  // Requests such as TokenizeRequest have no field for their own id. The server takes the id from
  // their metadata and returns it.
  EXPECT_EQ(echoed(client.Tokenize({}, with_metadata)), "from-metadata");
  EXPECT_EQ(echoed(client.GetStats(with_metadata)), "from-metadata");
  EXPECT_THAT(echoed(client.GetStats()), ::testing::StartsWith("req-"));
  request.set_request_id(std::string(129, 'x'));
  EXPECT_EQ(client.Generate(request).status.code(), absl::StatusCode::kInvalidArgument);
  request.set_request_id("new\nline");
  EXPECT_EQ(client.Generate(request).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(GenerateTest, AnIdOfMetadataIsANameForManyAndAFieldsIsAKey) {
  MemoryServer server({.default_max_tokens = 1 << 30});
  MemoryClient client(server);
  const CallOptions named{.metadata = {{"x-request-id", "of-a-proxy"}}};
  auto first = client.GenerateStream(Prompt(), named);
  v1::GenerateStreamResponse message;
  ASSERT_TRUE(first->Read(message));
  EXPECT_EQ(message.request_id(), "of-a-proxy");
  EXPECT_TRUE(server.engine.last_params().id_is_name);
  auto second = client.GenerateStream(Prompt(), named);
  ASSERT_TRUE(second->Read(message));
  EXPECT_EQ(message.request_id(), "of-a-proxy~1");
  v1::GenerateRequest short_one = Prompt();
  short_one.mutable_stop()->set_max_tokens(1);
  const auto whole = client.Generate(short_one, named);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_EQ(whole.response.request_id(), "of-a-proxy~2");
  EXPECT_EQ(whole.initial_metadata.find("x-request-id")->second, "of-a-proxy~2");
  short_one.set_request_id("of-a-proxy");
  EXPECT_EQ(client.Generate(short_one, named).response.request_id(), "of-a-proxy");
  EXPECT_FALSE(server.engine.last_params().id_is_name);
  short_one.clear_request_id();
  EXPECT_TRUE(client.Generate(short_one).status.ok());
  EXPECT_TRUE(server.engine.last_params().id_is_name) << "one that the server made";
  v1::ScoreRequest score;
  score.set_text("x");
  score.add_continuations()->set_text("y");
  EXPECT_EQ(client.Score(score, named).response.request_id(), "of-a-proxy~2");
  v1::AbortRequest abort;
  abort.set_request_id("of-a-proxy");
  EXPECT_TRUE(client.Abort(abort).status.ok());
  ReadAll(*first);
  ReadAll(*second);
  const Outcome of_second = second->Finish();
  EXPECT_EQ(first->Finish().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(of_second.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(of_second.initial_metadata.find("x-request-id")->second, "of-a-proxy~1");
}

TEST(GenerateTest, AnAnswerInOneMessageIsBoundedByTheServersSize) {
  ServerConfig config;
  config.max_answer_mib = 3;
  MemoryServer server({}, config);
  MemoryClient client(server);
  EXPECT_TRUE(client.Generate(Prompt()).status.ok());
  EXPECT_EQ(server.engine.last_params().max_answer_bytes, 3 << 20);
  auto stream = client.GenerateStream(Prompt());
  ReadAll(*stream);
  EXPECT_TRUE(stream->Finish().status.ok());
  EXPECT_EQ(server.engine.last_params().max_answer_bytes, 0);
  v1::ScoreRequest score;
  score.set_text("x");
  score.add_continuations()->set_text("y");
  EXPECT_TRUE(client.Score(score).status.ok());
  EXPECT_EQ(server.engine.last_params().max_answer_bytes, 3 << 20);
  v1::GenerateBatchRequest batch;
  *batch.add_requests() = Prompt();
  auto call = client.GenerateBatch(batch);
  ReadAll(*call);
  EXPECT_TRUE(call->Finish().status.ok());
  EXPECT_EQ(server.engine.last_params().max_answer_bytes, 3 << 20);
  // Each byte is a token of the answer.
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string(100'000, 'x'));
  EXPECT_TRUE(client.Tokenize(tokenize).status.ok());
  tokenize.set_text(std::string(300'000, 'x'));
  const auto too_large = client.Tokenize(tokenize);
  EXPECT_EQ(too_large.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_large.status.message()), ::testing::HasSubstr("max_answer_mib"));
  google::rpc::RetryInfo retry;
  EXPECT_FALSE(HasDetails(too_large, retry));
}

TEST(GenerateTest, ErrorsNameTheCure) {
  MemoryServer server({.max_requests = 1, .held = true});
  MemoryClient client(server);

  v1::GenerateRequest request = Prompt();
  request.set_model("another");
  EXPECT_EQ(client.Generate(request).status.code(), absl::StatusCode::kNotFound);

  google::rpc::BadRequest bad_request;
  const auto empty = client.Generate(v1::GenerateRequest());
  EXPECT_EQ(empty.status.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(HasDetails(empty, bad_request));
  EXPECT_EQ(bad_request.field_violations(0).field(), "prompt");

  auto running = client.GenerateStream([&] {
    v1::GenerateRequest first = Prompt();
    first.set_request_id("first");
    return first;
  }());
  ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 1; }));
  request = Prompt();
  request.set_request_id("first");
  EXPECT_EQ(client.Generate(request).status.code(), absl::StatusCode::kAlreadyExists);
  const auto full = client.Generate(Prompt());
  EXPECT_EQ(full.status.code(), absl::StatusCode::kResourceExhausted);
  google::rpc::RetryInfo retry;
  EXPECT_TRUE(HasDetails(full, retry));
  server.engine.Release();
  ReadAll(*running);
  EXPECT_TRUE(running->Finish().status.ok());

  ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 0; }));
  request = Prompt();
  request.mutable_sampling()->set_top_p(1.5f);
  const auto expect_refused = [&](const Outcome& outcome) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE(HasDetails(outcome, bad_request));
    EXPECT_EQ(bad_request.field_violations(0).field(), "sampling.top_p");
    // A refused request counts as running until a moment after its answer.
    ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 0; }));
  };
  expect_refused(client.Generate(request));
  const auto stream = client.GenerateStream(request);
  EXPECT_TRUE(ReadAll(*stream).empty());
  expect_refused(stream->Finish());

  server.Drain();
  const auto draining = client.Generate(Prompt());
  EXPECT_EQ(draining.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(HasDetails(draining, retry));
}

TEST(GenerateTest, ADroppedStreamStopsInAnyState) {
  MemoryServer server({.default_max_tokens = 1 << 30, .held = true});
  MemoryClient client(server);
  const auto none_runs = [&] { return server.engine.num_running() == 0; };
  const auto one_runs = [&] { return server.engine.num_running() == 1; };

  auto before_a_token = client.GenerateStream(Prompt());
  ASSERT_TRUE(server.engine.WaitFor(one_runs));
  before_a_token->Cancel();
  EXPECT_TRUE(server.engine.WaitFor(none_runs));
  EXPECT_EQ(before_a_token->Finish().status.code(), absl::StatusCode::kCancelled);

  server.engine.Release();
  auto after_a_token = client.GenerateStream(Prompt());
  v1::GenerateStreamResponse message;
  ASSERT_TRUE(after_a_token->Read(message));
  after_a_token->Cancel();
  EXPECT_TRUE(server.engine.WaitFor(none_runs));
  EXPECT_EQ(after_a_token->Finish().status.code(), absl::StatusCode::kCancelled);

  auto at_once = client.GenerateStream(Prompt());
  at_once->Cancel();
  at_once->Finish();
  EXPECT_TRUE(server.engine.WaitFor(none_runs));
  EXPECT_TRUE(server.open_calls.WaitUntilNone(base::SteadyNow() + absl::Seconds(10)));
}

TEST(GenerateTest, AUnaryCallStopsAtItsDeadline) {
  MemoryServer server({.default_max_tokens = 1 << 30});
  MemoryClient client(server);
  const absl::Time before = absl::Now();
  const auto reply = client.Generate(Prompt(), {.timeout = absl::Milliseconds(100)});
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kDeadlineExceeded);
  const absl::Time deadline = server.engine.last_params().deadline;
  EXPECT_GT(deadline, before);
  EXPECT_LT(deadline, before + absl::Seconds(5));
  EXPECT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 0; }));
}

TEST(GenerateTest, AReaderThatNeverReadsStallsItselfAlone) {
  // Tokens this large fill every buffer between the engine and a reader within a few steps.
  const auto large = [](int32_t, int32_t) { return std::string(64 << 10, 'x'); };
  MemoryServer server({.default_max_tokens = 1 << 30, .token_text = large});
  MemoryClient client(server);
  auto stuck = client.GenerateStream(Prompt());
  ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_stalled_steps() > 0; }));
  MemoryClient other(server);
  v1::GenerateRequest request = Prompt();
  request.mutable_stop()->set_max_tokens(5);
  const auto reply = other.Generate(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(reply.response.completions(0).text().size(), size_t{5 * 64 << 10});
  EXPECT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 1; }));
  // The stalled request goes on as soon as its client reads.
  v1::GenerateStreamResponse message;
  const int64_t generated = server.engine.stats().generated_tokens;
  while (server.engine.stats().generated_tokens == generated) ASSERT_TRUE(stuck->Read(message));
  stuck->Cancel();
  EXPECT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 0; }));
  stuck->Finish();
}

TEST(GenerateTest, AReaderThatNeverReadsLeaves256TokensWaiting) {
  // 256 tokens have half a MiB in all, so the buffer is full because of the number of tokens, not
  // because of their size.
  const auto small = [](int32_t, int32_t) { return std::string(2 << 10, 'x'); };
  MemoryServer server({.default_max_tokens = 1 << 30, .token_text = small});
  MemoryClient client(server);
  v1::GenerateRequest request = Prompt();
  request.mutable_output()->set_token_ids(true);
  auto stuck = client.GenerateStream(request);
  ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_stalled_steps() > 0; }));
  // All tokens that waited for the stalled write are sent as one message.
  int most = 0;
  v1::GenerateStreamResponse message;
  const int64_t generated = server.engine.stats().generated_tokens;
  for (int64_t read = 0; read < generated; read += message.token_ids_size()) {
    ASSERT_TRUE(stuck->Read(message));
    most = std::max(most, message.token_ids_size());
  }
  EXPECT_EQ(most, 256);
  stuck->Cancel();
  EXPECT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 0; }));
  stuck->Finish();
}

TEST(GenerateTest, ManyClientsAtOnce) {
  constexpr int kClients = 32;
  MemoryServer server;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&] {
      MemoryClient client(server);
      v1::GenerateRequest request = Prompt();
      request.mutable_stop()->set_max_tokens(20);
      auto stream = client.GenerateStream(request);
      std::string text;
      for (const auto& message : ReadAll(*stream)) text += message.text_delta();
      EXPECT_TRUE(stream->Finish().status.ok());
      std::string expected;
      for (int t = 0; t < 20; ++t) expected += absl::StrCat("0:", t, " ");
      EXPECT_EQ(text, expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server.counters.Get(static_cast<size_t>(Rpc::kGenerateStream), 0), size_t{kClients});
}

}  // namespace
}  // namespace quire::server
