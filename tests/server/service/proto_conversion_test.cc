#include "server/service/proto_conversion.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <variant>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

#include "engine/request/answer_size.h"
#include "server/service/prefix_conversion.h"
#include "server/service/session_conversion.h"
#include "tests/server/fake_engine.h"
#include "tests/testing/fake_tokenizer.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::GenerateRequest TextRequest() {
  v1::GenerateRequest request;
  request.set_text("hello");
  return request;
}

TEST(ProtoConversionTest, WhatIsAbsentIsTheEnginesDefault) {
  const auto params = FromProto(TextRequest());
  ASSERT_TRUE(params.ok()) << params.status();
  EXPECT_EQ(std::get<std::string>(params->prompt), "hello");
  const engine::SamplingParams defaults;
  EXPECT_EQ(params->sampling.temperature, defaults.temperature);
  EXPECT_EQ(params->sampling.top_k, defaults.top_k);
  EXPECT_EQ(params->sampling.typical_p, defaults.typical_p);
  EXPECT_EQ(params->sampling.top_p, defaults.top_p);
  EXPECT_EQ(params->sampling.min_p, defaults.min_p);
  EXPECT_EQ(params->sampling.repetition_penalty, defaults.repetition_penalty);
  EXPECT_EQ(params->sampling.penalty_last_n, defaults.penalty_last_n);
  EXPECT_EQ(params->sampling.seed, std::nullopt);
  EXPECT_EQ(params->sampling.n, 1);
  EXPECT_EQ(params->stop.max_tokens, std::nullopt);
  EXPECT_TRUE(params->output.text);
  EXPECT_TRUE(params->output.skip_special_tokens);
  EXPECT_FALSE(params->output.token_ids);
  EXPECT_EQ(params->output.top_logprobs, std::nullopt);
}

TEST(ProtoConversionTest, TheTextsOfARequestThatIsMovedAreNotCopied) {
  const std::string text(1000, 'a');
  v1::GenerateRequest prompt, chat;
  prompt.set_text(text);
  chat.mutable_chat()->add_messages()->set_content(text);
  v1::ScoreRequest score;
  score.set_text(text);
  score.add_continuations()->set_text(text);
  const char* const of_prompt = prompt.text().data();
  const char* const of_message = chat.chat().messages(0).content().data();
  const char* const of_continuation = score.continuations(0).text().data();
  EXPECT_EQ(std::get<std::string>(FromProto(std::move(prompt))->prompt).data(), of_prompt);
  EXPECT_EQ(std::get<engine::ChatMessages>(FromProto(std::move(chat))->prompt)[0].content.data(),
            of_message);
  EXPECT_EQ(std::get<std::string>(FromProto(std::move(score))->continuations[0]).data(),
            of_continuation);
}

TEST(ProtoConversionTest, NorAreThoseOfPrefixesAndSessions) {
  const std::string text(1000, 'a');
  v1::CreatePrefixRequest prefix;
  prefix.set_text(text);
  v1::AppendToSessionRequest append, chat;
  append.set_text(text);
  chat.mutable_chat()->add_messages()->set_content(text);
  v1::CreateSessionRequest session;
  session.mutable_content()->mutable_chat()->add_messages()->set_content(text);
  const char* const of_prefix = prefix.text().data();
  const char* const of_append = append.text().data();
  const char* const of_message = chat.chat().messages(0).content().data();
  const char* const of_session = session.content().chat().messages(0).content().data();
  EXPECT_EQ(std::get<std::string>(FromProto(std::move(prefix), PrefixTtlLimits())->content).data(),
            of_prefix);
  EXPECT_EQ(std::get<std::string>(FromProto(std::move(append), {})->content).data(), of_append);
  EXPECT_EQ(
      std::get<engine::ChatMessages>(FromProto(std::move(chat), {})->content)[0].content.data(),
      of_message);
  EXPECT_EQ((*FromProto(std::move(session), {})->content->messages)[0].content.data(), of_session);
}

TEST(ProtoConversionTest, TakesEveryField) {
  v1::GenerateRequest request;
  request.set_model("m");
  request.mutable_token_ids()->add_ids(3);
  request.mutable_token_ids()->add_ids(5);
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_temperature(0.0f);  // a field that is set to zero is not absent
  sampling.set_top_k(40);
  sampling.set_typical_p(0.9f);
  sampling.set_top_p(0.8f);
  sampling.set_min_p(0.1f);
  sampling.set_presence_penalty(0.5f);
  sampling.set_frequency_penalty(-0.5f);
  sampling.set_repetition_penalty(1.1f);
  sampling.set_penalty_last_n(0);
  sampling.set_seed(0xFFFFFFFFFFFFFFFFu);
  sampling.set_n(3);
  sampling.set_best_of(5);
  sampling.mutable_beam()->set_width(7);
  sampling.mutable_beam()->set_length_penalty(-0.5f);
  sampling.mutable_beam()->set_early_stopping(v1::BeamParams::EARLY_STOPPING_NEVER);
  sampling.mutable_beam()->set_num_return(2);
  (*sampling.mutable_logit_bias())[9] = -1.0f;
  (*sampling.mutable_logit_bias())[4] = 2.0f;
  sampling.add_allowed_token_ids(7);
  v1::StopParams& stop = *request.mutable_stop();
  stop.set_max_tokens(10);
  stop.set_min_tokens(2);
  stop.add_stop("END");
  stop.add_stop_token_ids(8);
  stop.set_include_stop(true);
  stop.set_ignore_eos(true);
  v1::OutputOptions& output = *request.mutable_output();
  output.set_text(false);
  output.set_token_ids(true);
  output.set_top_logprobs(0);
  output.set_prompt_logprobs(5);
  output.set_logprob_text(true);
  output.set_echo(true);
  output.set_usage_per_chunk(true);
  output.set_skip_special_tokens(false);
  request.mutable_cache()->set_salt("s");
  request.mutable_cache()->set_bypass_read(true);
  request.mutable_cache()->set_bypass_write(true);
  request.mutable_cache()->set_window_tokens(256);
  request.mutable_cache()->set_sink_tokens(4);
  request.mutable_sched()->set_priority(-4);
  request.mutable_sched()->set_tenant("t");

  const auto params = FromProto(request);
  ASSERT_TRUE(params.ok()) << params.status();
  EXPECT_EQ(params->model, "m");
  EXPECT_THAT(std::get<engine::TokenIds>(params->prompt), ElementsAre(3, 5));
  EXPECT_EQ(params->sampling.temperature, 0.0f);
  EXPECT_EQ(params->sampling.top_k, 40);
  EXPECT_EQ(params->sampling.typical_p, 0.9f);
  EXPECT_EQ(params->sampling.top_p, 0.8f);
  EXPECT_EQ(params->sampling.min_p, 0.1f);
  EXPECT_EQ(params->sampling.presence_penalty, 0.5f);
  EXPECT_EQ(params->sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(params->sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(params->sampling.penalty_last_n, 0);
  EXPECT_EQ(params->sampling.seed, 0xFFFFFFFFFFFFFFFFu);
  EXPECT_EQ(params->sampling.n, 3);
  EXPECT_EQ(params->sampling.best_of, 5);
  ASSERT_TRUE(params->sampling.beam.has_value());
  EXPECT_EQ(params->sampling.beam->width, 7);
  EXPECT_EQ(params->sampling.beam->length_penalty, -0.5f);
  EXPECT_EQ(params->sampling.beam->early_stopping, engine::BeamParams::EarlyStopping::kNever);
  EXPECT_EQ(params->sampling.beam->num_return, 2);
  ASSERT_EQ(params->sampling.logit_bias.size(), 2u);
  EXPECT_EQ(params->sampling.logit_bias[0].token_id, 4);
  EXPECT_EQ(params->sampling.logit_bias[1].bias, -1.0f);
  EXPECT_THAT(params->sampling.allowed_token_ids, ElementsAre(7));
  EXPECT_EQ(params->stop.max_tokens, 10);
  EXPECT_EQ(params->stop.min_tokens, 2);
  EXPECT_THAT(params->stop.stop, ElementsAre("END"));
  EXPECT_THAT(params->stop.stop_token_ids, ElementsAre(8));
  EXPECT_TRUE(params->stop.include_stop);
  EXPECT_TRUE(params->stop.ignore_eos);
  EXPECT_FALSE(params->output.text);
  EXPECT_TRUE(params->output.token_ids);
  EXPECT_EQ(params->output.top_logprobs, 0);
  EXPECT_EQ(params->output.prompt_logprobs, 5);
  EXPECT_TRUE(params->output.logprob_text);
  EXPECT_TRUE(params->output.echo);
  EXPECT_TRUE(params->output.usage_per_chunk);
  EXPECT_FALSE(params->output.skip_special_tokens);
  EXPECT_EQ(params->cache.salt, "s");
  EXPECT_TRUE(params->cache.bypass_read);
  EXPECT_TRUE(params->cache.bypass_write);
  EXPECT_EQ(params->cache.window_tokens, 256);
  EXPECT_EQ(params->cache.sink_tokens, 4);
  EXPECT_EQ(params->sched.priority, -4);
  EXPECT_EQ(params->sched.tenant, "t");
}

TEST(ProtoConversionTest, TakesWhatArrivedOfABrokenStream) {
  v1::GenerateRequest request = TextRequest();
  EXPECT_FALSE(FromProto(request)->resume.has_value());
  request.add_resume_token_ids()->add_ids(5);
  request.add_resume_token_ids();
  request.add_resume_text_bytes(3);
  request.add_resume_text_bytes(uint64_t{1} << 40);
  request.set_resume_model_digest("digest");
  request.set_resume_numerics("cpu-2");
  const auto params = FromProto(request);
  ASSERT_TRUE(params.ok()) << params.status();
  ASSERT_TRUE(params->resume.has_value());
  EXPECT_THAT(params->resume->token_ids, ElementsAre(ElementsAre(5), ElementsAre()));
  EXPECT_THAT(params->resume->text_bytes, ElementsAre(3u, uint64_t{1} << 40));
  EXPECT_EQ(params->resume->model_digest, "digest");
  EXPECT_EQ(params->resume->numerics, "cpu-2");
}

TEST(ProtoConversionTest, WhatWasResolvedComesBackAsItWas) {
  engine::ResolvedParams resolved{.max_tokens = 300};
  engine::SamplingParams& sampling = resolved.sampling;
  sampling.temperature = 0.75f;
  sampling.top_k = 40;
  sampling.typical_p = 0.5f;
  sampling.top_p = 0.25f;
  sampling.min_p = 0.125f;
  sampling.presence_penalty = 1.5f;
  sampling.frequency_penalty = -1.5f;
  sampling.repetition_penalty = 1.25f;
  sampling.penalty_last_n = 0;
  sampling.seed = ~uint64_t{0};
  sampling.n = 3;
  sampling.best_of = 3;
  const testing::FakeEngine engine;
  const v1::GenerateStreamResponse first =
      ToProto({.resolved = std::make_shared<const engine::ResolvedParams>(resolved)}, engine);
  EXPECT_FALSE(ToProto(engine::TokenDelta(), engine).has_resolved());
  v1::GenerateRequest request = TextRequest();
  request.mutable_sampling()->set_temperature(2);
  (*request.mutable_sampling()->mutable_logit_bias())[5] = 1;
  request.mutable_stop()->set_max_tokens(1000);
  request.add_resume_token_ids();
  *request.mutable_resume_resolved() = first.resolved();
  const auto params = FromProto(request);
  ASSERT_TRUE(params.ok()) << params.status();
  EXPECT_TRUE(params->resume->max_tokens_is_resolved);
  EXPECT_EQ(params->stop.max_tokens, 300);
  EXPECT_EQ(params->sampling.temperature, 0.75f);
  EXPECT_EQ(params->sampling.top_k, 40);
  EXPECT_EQ(params->sampling.typical_p, 0.5f);
  EXPECT_EQ(params->sampling.top_p, 0.25f);
  EXPECT_EQ(params->sampling.min_p, 0.125f);
  EXPECT_EQ(params->sampling.presence_penalty, 1.5f);
  EXPECT_EQ(params->sampling.frequency_penalty, -1.5f);
  EXPECT_EQ(params->sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(params->sampling.penalty_last_n, 0);
  EXPECT_EQ(params->sampling.seed, ~uint64_t{0});
  EXPECT_EQ(params->sampling.n, 3);
  EXPECT_EQ(params->sampling.best_of, 3);
  EXPECT_EQ(params->sampling.logit_bias.size(), 1u) << "the request's own";
  // Every field of SamplingParams is resolved, or stands in the request alone.
  EXPECT_EQ(v1::SamplingParams::descriptor()->field_count(), 15);
}

TEST(ProtoConversionTest, AnAnswerIsCountedAsItIsWritten) {
  const testing::FakeEngine engine;
  const testing::FakeTokenizer tokenizer;
  for (const int32_t rank : {0, 300}) {
    engine::TokenDelta delta{.text = std::string(100, 'x')};
    for (int32_t i = 0; i < 100; ++i) {
      const int32_t id = 'A' + i;
      delta.token_ids.push_back(id);
      delta.logprobs.push_back(
          {.chosen = {.token_id = id, .logprob = -3.5f},
           .top = {{.token_id = 'b', .logprob = -0.5f}, {.token_id = 200, .logprob = -1.5f}},
           .rank = rank});
    }
    delta.prompt_logprobs = delta.logprobs;
    engine::GenerateParams params;
    params.output = {.token_ids = true, .top_logprobs = 2, .prompt_logprobs = 2};
    auto counted = static_cast<size_t>(engine::AnswerBytes(delta, params, tokenizer));
    const size_t written = ToProto({delta}, {}, engine).ByteSizeLong();
    EXPECT_GE(written, counted);
    EXPECT_LE(written, counted + 64);
    params.continuations = {""};
    counted = static_cast<size_t>(engine::AnswerBytes(delta, params, tokenizer));
    const size_t scored = ToScores({delta}, {}, engine).ByteSizeLong();
    EXPECT_LE(scored, counted + 64);
    EXPECT_GE(scored + 2 * delta.token_ids.size(), counted) << "is_greedy is written only if true";
  }
}

TEST(ProtoConversionTest, RefusesARestOfAResumeWithoutTokens) {
  for (int field = 0; field < 4; ++field) {
    v1::GenerateRequest request = TextRequest();
    if (field == 0) request.add_resume_text_bytes(0);
    if (field == 1) request.set_resume_model_digest("digest");
    if (field == 2) request.set_resume_numerics("cpu-2");
    if (field == 3) request.mutable_resume_resolved();
    EXPECT_THAT(std::string(FromProto(request).status().message()),
                ::testing::StartsWith("resume_token_ids: "));
  }
}

TEST(ProtoConversionTest, TheEtagOfASessionWantsTheSession) {
  v1::GenerateRequest request = TextRequest();
  request.set_session_etag("v3");
  EXPECT_EQ(FromProto(request).status().message(), "session_etag: want none without session_name");
  request.set_session_name("sessions/s");
  EXPECT_EQ(FromProto(request)->session.etag, "v3");
}

TEST(ProtoConversionTest, TheContentOfASessionComesBackAsItWas) {
  engine::SessionInfo info;
  EXPECT_FALSE(ToProto(info).has_content());
  for (const std::optional<engine::ChatMessages>& messages :
       {std::optional<engine::ChatMessages>(), std::optional(engine::ChatMessages()),
        std::optional(engine::ChatMessages{{.role = "user", .content = "q"},
                                           {.role = "user", .content = "q", .literal = true},
                                           {.role = "user", .content = "q"}})}) {
    for (const std::optional<int64_t> answer_len :
         {std::optional<int64_t>(), std::optional(0L), std::optional(2L)}) {
      info.content = {.ids = {1, 2, 3},
                      .messages = messages,
                      .answer_len = answer_len,
                      .content_sha256 = std::string("\xff\0x", 3)};
      v1::CreateSessionRequest request;
      *request.mutable_content() = ToProto(info).content();
      const auto params = FromProto(request, {});
      ASSERT_TRUE(params.ok() && params->content.has_value());
      EXPECT_EQ(params->content->ids, info.content->ids);
      EXPECT_EQ(params->content->messages.has_value(), messages.has_value());
      if (messages.has_value()) {
        ASSERT_EQ(params->content->messages->size(), messages->size());
        for (size_t i = 0; i < messages->size(); ++i) {
          const text::ChatMessage& message = (*params->content->messages)[i];
          EXPECT_EQ(message.role, "user");
          EXPECT_EQ(message.content, "q");
          EXPECT_EQ(message.literal, i == 1);
        }
      }
      EXPECT_EQ(params->content->answer_len, answer_len);
      EXPECT_EQ(params->content->content_sha256, info.content->content_sha256);
    }
  }
}

TEST(ProtoConversionTest, LiteralMessagesOfAContentAreAmongItsMessages) {
  v1::CreateSessionRequest request;
  v1::SessionContent& content = *request.mutable_content();
  content.add_literal_messages(0);
  const auto error = [&request] {
    const auto params = FromProto(request, {});
    EXPECT_EQ(params.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(params.status().message());
  };
  EXPECT_EQ(error(),
            "content.literal_messages: want ascending indexes of the 0 messages of content.chat, "
            "got 0");
  content.mutable_chat()->add_messages();
  content.mutable_chat()->add_messages();
  EXPECT_TRUE(FromProto(request, {}).ok());
  content.add_literal_messages(1);
  EXPECT_TRUE(FromProto(request, {}).ok());
  content.set_literal_messages(0, 1);
  EXPECT_THAT(error(), ::testing::HasSubstr("of the 2 messages of content.chat, got 1"));
  content.clear_literal_messages();
  content.add_literal_messages(2);
  EXPECT_THAT(error(), ::testing::HasSubstr("got 2"));
  content.set_literal_messages(0, 4294967295);
  EXPECT_THAT(error(), ::testing::HasSubstr("got 4294967295"));

  content.clear_literal_messages();
  content.mutable_chat()->set_literal_contents(true);
  const auto params = FromProto(request, {});
  ASSERT_TRUE(params.ok());
  ASSERT_EQ(params->content->messages->size(), 2u);
  for (const auto& message : *params->content->messages) EXPECT_TRUE(message.literal);
}

TEST(ProtoConversionTest, AStreamThatCanBeResumedHasTokenIds) {
  v1::GenerateRequest request = TextRequest();
  request.mutable_output()->set_resumable(true);
  EXPECT_TRUE(FromProto(request)->output.token_ids);
  EXPECT_TRUE(FromProto(request)->output.resumable);
}

TEST(ProtoConversionTest, TakesAConversation) {
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("hi");
  const auto params = FromProto(request);
  ASSERT_TRUE(params.ok()) << params.status();
  const auto& messages = std::get<engine::ChatMessages>(params->prompt);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].role, "user");
  EXPECT_EQ(messages[0].content, "hi");
}

TEST(ProtoConversionTest, RefusesAnEmptyPrompt) {
  v1::GenerateRequest request;
  EXPECT_EQ(FromProto(request).status().message(), "prompt: want one of text, token_ids, chat");
  request.mutable_token_ids();
  EXPECT_EQ(FromProto(request).status().message(), "token_ids.ids: want at least one");
  request.mutable_chat();
  EXPECT_EQ(FromProto(request).status().message(), "chat.messages: want at least one");
}

TEST(ProtoConversionTest, RefusesCountsThatTheEngineCannotHold) {
  v1::GenerateRequest request = TextRequest();
  request.mutable_stop()->set_max_tokens(0x80000000u);
  EXPECT_EQ(FromProto(request).status().message(),
            "stop.max_tokens: want at most 2147483647, got 2147483648");
  request = TextRequest();
  request.mutable_sampling()->set_n(0xFFFFFFFFu);
  EXPECT_THAT(std::string(FromProto(request).status().message()), HasSubstr("sampling.n: want"));
}

TEST(ProtoConversionTest, TakesTheNameOfAPrefix) {
  v1::GenerateRequest request = TextRequest();
  EXPECT_EQ(FromProto(request)->prefix_name, "");
  const std::string name = "prefixes/" + std::string(26, 'a');
  request.set_prefix_name(name);
  ASSERT_TRUE(FromProto(request).ok()) << FromProto(request).status();
  EXPECT_EQ(FromProto(request)->prefix_name, name);
  for (const std::string& other : {name + "a", std::string("prefixes/"), "P" + name.substr(1)}) {
    request.set_prefix_name(other);
    EXPECT_THAT(std::string(FromProto(request).status().message()),
                ::testing::StartsWith("prefix_name: "));
  }
}

TEST(ProtoConversionTest, AStreamedDeltaKeepsEverything) {
  engine::TokenDelta delta{.index = 2,
                           .text = "abc",
                           .token_ids = {1, 2},
                           .finish_reason = engine::FinishReason::kStop,
                           .stop_token_id = 0,  // a field that is set to zero is not absent
                           .seed = 77,
                           .usage = engine::Usage{.prompt_tokens = 9}};
  delta.logprobs.push_back(
      {.chosen = {.token_id = 1, .logprob = -0.5f}, .top = {{.token_id = 4, .logprob = -0.25f}}});
  delta.prompt_logprobs.push_back({.chosen = {.token_id = 6, .logprob = -2.0f}});
  const testing::FakeEngine engine;
  const v1::GenerateStreamResponse out = ToProto(std::move(delta), engine);
  EXPECT_EQ(out.index(), 2u);
  EXPECT_EQ(out.text_delta(), "abc");
  EXPECT_THAT(out.token_ids(), ElementsAre(1, 2));
  ASSERT_EQ(out.logprobs_size(), 1);
  EXPECT_EQ(out.logprobs(0).chosen().logprob(), -0.5f);
  EXPECT_EQ(out.logprobs(0).top(0).token_id(), 4);
  EXPECT_EQ(out.prompt_logprobs(0).chosen().token_id(), 6);
  for (const v1::TokenLogprob& token :
       {out.logprobs(0).chosen(), out.logprobs(0).top(0), out.prompt_logprobs(0).chosen()}) {
    EXPECT_EQ(token.rank(), 0u) << "not asked for";
    EXPECT_EQ(token.text(), "");
  }
  EXPECT_EQ(out.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(out.stop().by_case(), v1::StoppedBy::kTokenId);
  EXPECT_EQ(out.seed(), 77u);
  EXPECT_EQ(out.usage().prompt_tokens(), 9u);
}

TEST(ProtoConversionTest, LogprobsHaveBytesAndRanksWhereTheyAreAskedFor) {
  const std::vector<engine::PositionLogprobs> logprobs = {
      {.chosen = {.token_id = 0xC3, .logprob = -0.5f},
       .top = {{.token_id = 'a', .logprob = -0.25f}, {.token_id = 'b', .logprob = -0.25f}},
       .rank = 31}};
  const auto check = [](const auto& got) {
    ASSERT_EQ(got.size(), 1);
    EXPECT_EQ(got[0].chosen().text(), "\xC3") << "a part of a character";
    EXPECT_EQ(got[0].chosen().rank(), 31u);
    ASSERT_EQ(got[0].top_size(), 2);
    EXPECT_EQ(got[0].top(0).text(), "a");
    EXPECT_EQ(got[0].top(0).rank(), 1u);
    EXPECT_EQ(got[0].top(1).text(), "b");
    EXPECT_EQ(got[0].top(1).rank(), 2u);
  };
  const testing::FakeEngine engine;
  const engine::TokenDelta delta = {.logprobs = logprobs, .prompt_logprobs = logprobs};
  const v1::GenerateStreamResponse message = ToProto(delta, engine);
  check(message.logprobs());
  check(message.prompt_logprobs());
  const v1::GenerateResponse answer = ToProto({delta}, {}, engine);
  check(answer.prompt_logprobs());
  check(answer.completions(0).logprobs());
  const v1::ScoreResponse scores = ToScores({delta}, {}, engine);
  EXPECT_EQ(scores.scores(0).tokens(0).text(), "\xC3");
  EXPECT_EQ(scores.scores(0).tokens(0).rank(), 31u);
}

TEST(ProtoConversionTest, AUnaryAnswerHasItsSamplesInOrder) {
  std::vector<engine::TokenDelta> samples;
  samples.push_back({.index = 1, .text = "one", .finish_reason = engine::FinishReason::kLength});
  samples.push_back({.index = 0,
                     .text = "zero",
                     .finish_reason = engine::FinishReason::kStop,
                     .stop_string = "END",
                     .seed = 5,
                     .score = -0.25});
  engine::RequestSummary summary{.usage = {.prompt_tokens = 1,
                                           .completion_tokens = 2,
                                           .cached_tokens = 3,
                                           .prefix_tokens = 6,
                                           .disk_tokens = 8,
                                           .recomputed_tokens = 4,
                                           .num_preemptions = 5,
                                           .block_copies = 7},
                                 .timings = {.queue = absl::Milliseconds(1),
                                             .prefill = absl::Milliseconds(2),
                                             .ttft = absl::Milliseconds(3),
                                             .decode = absl::Milliseconds(4)}};
  const v1::GenerateResponse out = ToProto(std::move(samples), summary, testing::FakeEngine());
  ASSERT_EQ(out.completions_size(), 2);
  EXPECT_EQ(out.completions(0).text(), "zero");
  EXPECT_EQ(out.completions(0).stop().text(), "END");
  EXPECT_EQ(out.completions(0).seed(), 5u);
  EXPECT_EQ(out.completions(0).score(), -0.25);
  EXPECT_EQ(out.completions(1).index(), 1u);
  EXPECT_FALSE(out.completions(1).has_score());
  EXPECT_FALSE(out.completions(1).has_stop());
  EXPECT_EQ(out.usage().cached_tokens(), 3u);
  EXPECT_EQ(out.usage().recomputed_tokens(), 4u);
  EXPECT_EQ(out.usage().prefix_tokens(), 6u);
  EXPECT_EQ(out.usage().disk_tokens(), 8u);
  EXPECT_EQ(out.usage().num_preemptions(), 5u);
  EXPECT_EQ(out.usage().block_copies(), 7u);
  EXPECT_DOUBLE_EQ(out.timings().queue_seconds(), 0.001);
  EXPECT_DOUBLE_EQ(out.timings().prefill_seconds(), 0.002);
  EXPECT_DOUBLE_EQ(out.timings().ttft_seconds(), 0.003);
  EXPECT_DOUBLE_EQ(out.timings().decode_seconds(), 0.004);
}

// Checks rules for our proto files: a scalar option is `optional`, and the value 0 of an enum (here
// FinishReason) is _UNSPECIFIED.
TEST(ProtoFilesTest, EveryOptionIsOptional) {
  for (const google::protobuf::Descriptor* message :
       {v1::SamplingParams::descriptor(), v1::StopParams::descriptor(),
        v1::OutputOptions::descriptor(), v1::CacheParams::descriptor(),
        v1::SchedParams::descriptor()}) {
    for (int i = 0; i < message->field_count(); ++i) {
      const google::protobuf::FieldDescriptor& field = *message->field(i);
      EXPECT_TRUE(field.is_repeated() || field.has_presence()) << field.full_name();
    }
  }
  const auto& unspecified = *v1::FinishReason_descriptor()->value(0);
  EXPECT_THAT(std::string(unspecified.name()), HasSubstr("_UNSPECIFIED"));
  EXPECT_EQ(unspecified.number(), 0);
}

TEST(ProtoFilesTest, EveryFieldHasAComment) {
  const std::regex field(R"(\s+[\w.<>, ]+ = \d+;)");
  int num_fields = 0;
  for (const auto& entry : std::filesystem::directory_iterator("proto/quire/v1")) {
    std::ifstream file(entry.path());
    std::string line, above;
    for (; std::getline(file, line); above = line) {
      if (!std::regex_match(line, field)) continue;
      ++num_fields;
      EXPECT_THAT(above, HasSubstr("// ")) << entry.path() << ": " << line;
    }
  }
  EXPECT_GT(num_fields, 100);
}

}  // namespace
}  // namespace quire::server
