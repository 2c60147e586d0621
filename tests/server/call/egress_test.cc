#include "server/call/egress.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/mutex.h"
#include "engine/request/delta_buffer.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;

engine::TokenDelta Delta(int32_t index, std::string text, bool last = false) {
  engine::TokenDelta delta{.index = index, .text = std::move(text)};
  if (last) delta.finish_reason = engine::FinishReason::kLength;
  return delta;
}

// A call whose writes end only when the test ends them.
class FakeCall : public StreamWriter {
 public:
  struct Written {
    engine::TokenDelta delta;
    std::optional<engine::RequestSummary> summary;
  };

  void Write(engine::TokenDelta delta, const engine::RequestSummary* summary) override {
    base::MutexLock lock(mu_);
    EXPECT_FALSE(in_flight_) << "two writes in flight";
    EXPECT_FALSE(closed_) << "a write after the end";
    in_flight_ = true;
    written_.push_back({std::move(delta), summary == nullptr
                                              ? std::nullopt
                                              : std::optional<engine::RequestSummary>(*summary)});
    changed_.NotifyAll();
  }
  void Close(const absl::Status& status, const engine::RequestSummary&) override {
    base::MutexLock lock(mu_);
    EXPECT_FALSE(closed_) << "closed twice";
    EXPECT_FALSE(in_flight_) << "closed under a write";
    closed_ = true;
    status_ = status;
    changed_.NotifyAll();
  }
  void Abandon() override {
    base::MutexLock lock(mu_);
    abandoned_ = true;
    changed_.NotifyAll();
  }

  // Waits for write number `n`, counted from 1.
  Written WaitForWrite(size_t n) {
    base::MutexLock lock(mu_);
    Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return written_.size() >= n; });
    return written_.size() >= n ? written_[n - 1] : Written{};
  }
  absl::Status WaitForClose() {
    base::MutexLock lock(mu_);
    Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return closed_; });
    return status_;
  }
  void WaitForAbandon() {
    base::MutexLock lock(mu_);
    Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return abandoned_; });
  }
  void EndWrite(StreamSink& sink, bool ok = true) {
    {
      base::MutexLock lock(mu_);
      in_flight_ = false;
    }
    sink.OnWriteDone(ok);
  }
  size_t num_written() {
    base::MutexLock lock(mu_);
    return written_.size();
  }
  bool closed() {
    base::MutexLock lock(mu_);
    return closed_;
  }

 private:
  void Wait(const std::function<bool()>& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (!done()) {
      ASSERT_LT(absl::Now(), deadline) << "nothing came";
      changed_.WaitFor(mu_, std::chrono::milliseconds(100));
    }
  }

  base::Mutex mu_;
  base::CondVar changed_;
  std::vector<Written> written_ ABSL_GUARDED_BY(mu_);
  bool in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

TEST(DeltaBufferTest, MergesPerSample) {
  engine::DeltaBuffer buffer;
  engine::TokenDelta first = Delta(1, "a");
  first.token_ids = {1};
  first.logprobs.resize(1);
  first.prompt_logprobs.resize(2);
  engine::TokenDelta second = Delta(1, "b", true);
  second.token_ids = {2};
  second.logprobs.resize(1);
  second.prompt_logprobs.resize(3);
  second.stop_string = "END";
  second.stop_token_id = 7;
  second.seed = 9;
  second.usage = engine::Usage{.completion_tokens = 2};
  buffer.Add(std::move(first));
  buffer.Add(Delta(0, "x"));
  buffer.Add(std::move(second));
  EXPECT_EQ(buffer.num_deltas(), 3);
  EXPECT_GT(buffer.num_bytes(), 0);
  const std::vector<engine::TokenDelta> taken = buffer.Take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].index, 1);
  EXPECT_EQ(taken[0].text, "ab");
  EXPECT_THAT(taken[0].token_ids, ElementsAre(1, 2));
  EXPECT_EQ(taken[0].logprobs.size(), 2u);
  EXPECT_EQ(taken[0].prompt_logprobs.size(), 5u);
  EXPECT_EQ(taken[0].finish_reason, engine::FinishReason::kLength);
  EXPECT_EQ(taken[0].stop_string, "END");
  EXPECT_EQ(taken[0].stop_token_id, 7);
  EXPECT_EQ(taken[0].seed, 9u);
  EXPECT_EQ(taken[0].usage->completion_tokens, 2);
  EXPECT_EQ(taken[1].text, "x");
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(buffer.num_deltas(), 0);
  EXPECT_EQ(buffer.num_bytes(), 0);
}

TEST(StreamSinkTest, WhatWaitsBehindAWriteGoesOutTogether) {
  Egress egress;
  FakeCall call;
  auto sink = std::make_shared<StreamSink>(StreamSinkOptions{}, egress, call);
  sink->Put(Delta(0, "a"));
  EXPECT_EQ(call.WaitForWrite(1).delta.text, "a");
  sink->Put(Delta(0, "b"));
  sink->Put(Delta(0, "c"));
  EXPECT_EQ(call.num_written(), 1u);
  call.EndWrite(*sink);
  EXPECT_EQ(call.WaitForWrite(2).delta.text, "bc");
  call.EndWrite(*sink);
  sink->Put(Delta(0, "d", true));
  sink->Finish(absl::OkStatus(), {.usage = {.completion_tokens = 4}});
  const FakeCall::Written last = call.WaitForWrite(3);
  EXPECT_EQ(last.delta.text, "d");
  ASSERT_TRUE(last.summary.has_value());
  EXPECT_EQ(last.summary->usage.completion_tokens, 4);
  EXPECT_FALSE(call.closed());
  call.EndWrite(*sink);
  EXPECT_TRUE(call.WaitForClose().ok());
}

// The last delta and Finish come from one step, but the egress thread may run between them.
TEST(StreamSinkTest, TheLastMessageWaitsForTheSummary) {
  Egress egress;
  FakeCall call;
  auto sink = std::make_shared<StreamSink>(StreamSinkOptions{}, egress, call);
  FakeCall other;
  auto probe = std::make_shared<StreamSink>(StreamSinkOptions{}, egress, other);
  sink->Put(Delta(0, "only", true));
  probe->Put(Delta(0, "x"));
  other.WaitForWrite(1);  // by now the egress thread has pumped the first sink too
  EXPECT_EQ(call.num_written(), 0u);
  sink->Finish(absl::OkStatus(), {});
  EXPECT_TRUE(call.WaitForWrite(1).summary.has_value());
  for (const auto& [c, s] : {std::pair(&call, sink), std::pair(&other, probe)}) c->EndWrite(*s);
  EXPECT_TRUE(call.WaitForClose().ok());
  probe->Finish(absl::CancelledError(), {});
  EXPECT_EQ(other.WaitForClose().code(), absl::StatusCode::kCancelled);
}

TEST(StreamSinkTest, OnlyTheVeryLastOfSeveralMessagesHasTheSummary) {
  Egress egress;
  FakeCall call;
  auto sink = std::make_shared<StreamSink>(StreamSinkOptions{.num_samples = 2}, egress, call);
  sink->Put(Delta(0, "a"));
  call.WaitForWrite(1);
  sink->Put(Delta(0, "b", true));
  sink->Put(Delta(1, "c"));
  call.EndWrite(*sink);
  EXPECT_EQ(call.WaitForWrite(2).delta.text, "b");
  sink->Put(Delta(1, "d", true));  // comes while "c" is taken out but not yet written
  sink->Finish(absl::OkStatus(), {});
  std::string second;
  for (size_t n = 3;; ++n) {
    call.EndWrite(*sink);
    const FakeCall::Written written = call.WaitForWrite(n);
    EXPECT_EQ(written.delta.index, 1);
    second += written.delta.text;
    const bool last = written.delta.finish_reason != engine::FinishReason::kNone;
    EXPECT_EQ(written.summary.has_value(), last);
    if (last || n > 4) break;
  }
  EXPECT_EQ(second, "cd");
  call.EndWrite(*sink);
  EXPECT_TRUE(call.WaitForClose().ok());
}

TEST(StreamSinkTest, AFullBufferSaysSo) {
  Egress egress;
  FakeCall call;
  auto sink = std::make_shared<StreamSink>(StreamSinkOptions{.max_deltas = 4, .max_bytes = 100},
                                           egress, call);
  EXPECT_TRUE(sink->CanTake(1000)) << "an empty buffer takes any step";
  sink->Put(Delta(0, "a"));
  call.WaitForWrite(1);
  sink->Put(Delta(0, "b"));
  EXPECT_TRUE(sink->CanTake(3));
  EXPECT_FALSE(sink->CanTake(4));
  sink->Put(Delta(0, std::string(100, 'x')));
  EXPECT_FALSE(sink->CanTake(1));
  call.EndWrite(*sink);
  call.WaitForWrite(2);
  EXPECT_TRUE(sink->CanTake(4));
  sink->Finish(absl::OkStatus(), {});
  call.EndWrite(*sink);
  EXPECT_EQ(call.WaitForClose().code(), absl::StatusCode::kOk);
}

TEST(StreamSinkTest, SaysOnceThatThereIsRoomAgain) {
  Egress egress;
  FakeCall call;
  auto sink = std::make_shared<StreamSink>(StreamSinkOptions{.max_deltas = 1}, egress, call);
  std::counting_semaphore<> told{0};
  sink->SetOnRoom([&] { told.release(); });
  sink->Put(Delta(0, "a"));
  call.WaitForWrite(1);
  sink->Put(Delta(0, "b"));
  EXPECT_FALSE(sink->CanTake(1));
  EXPECT_FALSE(sink->CanTake(1));
  EXPECT_FALSE(told.try_acquire()) << "nothing was read";
  call.EndWrite(*sink);
  ASSERT_TRUE(told.try_acquire_for(std::chrono::seconds(30)));
  EXPECT_TRUE(sink->CanTake(1));
  call.WaitForWrite(2);
  sink->Finish(absl::OkStatus(), {});
  call.EndWrite(*sink);
  EXPECT_TRUE(call.WaitForClose().ok());
  EXPECT_FALSE(told.try_acquire()) << "nobody had asked again";
}

TEST(AnswerLingerTest, GivesUpACallThatIsNotDone) {
  Egress egress;
  std::counting_semaphore<> abandoned{0};
  const auto linger =
      std::make_shared<AnswerLinger>(egress, absl::Milliseconds(10), [&] { abandoned.release(); });
  linger->Answered();
  EXPECT_TRUE(abandoned.try_acquire_for(std::chrono::seconds(30)));
}

TEST(AnswerLingerTest, LeavesACallAloneThatIs) {
  Egress egress;
  std::atomic<int> abandoned = 0;
  std::counting_semaphore<> later{0};
  const auto linger =
      std::make_shared<AnswerLinger>(egress, absl::Milliseconds(10), [&] { ++abandoned; });
  const auto other =
      std::make_shared<AnswerLinger>(egress, absl::Milliseconds(10), [&] { later.release(); });
  linger->Answered();
  linger->Done();
  other->Answered();  // this alarm is due after the alarm of `linger`
  ASSERT_TRUE(later.try_acquire_for(std::chrono::seconds(30)));
  EXPECT_EQ(abandoned, 0);
}

TEST(StreamSinkTest, LogprobsFillABufferLikeText) {
  engine::PositionLogprobs position;
  position.top.resize(20);
  for (const bool of_prompt : {false, true}) {
    Egress egress;
    FakeCall call;
    auto sink = std::make_shared<StreamSink>(StreamSinkOptions{}, egress, call);
    sink->Put(Delta(0, "a"));
    call.WaitForWrite(1);
    engine::TokenDelta delta = Delta(0, "");
    (of_prompt ? delta.prompt_logprobs : delta.logprobs).assign(10000, position);
    EXPECT_TRUE(sink->CanTake(1));
    sink->Put(std::move(delta));
    EXPECT_FALSE(sink->CanTake(1)) << "10,000 positions of 20 tokens are more than a MiB";
    sink->Finish(absl::OkStatus(), {});
    call.EndWrite(*sink);
    call.WaitForWrite(2);
    call.EndWrite(*sink);
    EXPECT_EQ(call.WaitForClose().code(), absl::StatusCode::kOk);
  }
}

TEST(StreamSinkTest, AReaderThatIsGoneHoldsNothingUp) {
  Egress egress;
  FakeCall call;
  auto sink = std::make_shared<StreamSink>(StreamSinkOptions{.max_deltas = 1}, egress, call);
  sink->Put(Delta(0, "a"));
  call.WaitForWrite(1);
  sink->Put(Delta(0, "b"));
  EXPECT_FALSE(sink->CanTake(1));
  call.EndWrite(*sink, false);
  EXPECT_TRUE(sink->CanTake(1));
  sink->Put(Delta(0, "c", true));
  sink->Finish(absl::CancelledError("gone"), {});
  EXPECT_EQ(call.WaitForClose().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(call.num_written(), 1u);
}

TEST(StreamSinkTest, AnErrorComesAfterWhatWasWrittenBefore) {
  Egress egress;
  FakeCall call;
  auto sink = std::make_shared<StreamSink>(StreamSinkOptions{}, egress, call);
  sink->Put(Delta(0, "a"));
  call.WaitForWrite(1);
  sink->Put(Delta(0, "b"));
  sink->Finish(absl::DeadlineExceededError("late"), {});
  call.EndWrite(*sink);
  EXPECT_EQ(call.WaitForWrite(2).delta.text, "b");
  call.EndWrite(*sink);
  EXPECT_EQ(call.WaitForClose().message(), "late");
}

TEST(StreamSinkTest, AReaderThatNeverTakesTheRestIsGivenUp) {
  Egress egress;
  FakeCall call;
  auto sink = std::make_shared<StreamSink>(StreamSinkOptions{.linger = absl::Milliseconds(1)},
                                           egress, call);
  sink->Put(Delta(0, "a"));
  call.WaitForWrite(1);
  sink->Finish(absl::DeadlineExceededError("stalled"), {});
  call.WaitForAbandon();
  EXPECT_FALSE(call.closed());
  call.EndWrite(*sink, false);
  EXPECT_EQ(call.WaitForClose().message(), "stalled");
}

TEST(StreamSinkTest, TokenIdsAreSentOnlyWhenAskedFor) {
  Egress egress;
  for (const bool token_ids : {false, true}) {
    FakeCall call;
    auto sink =
        std::make_shared<StreamSink>(StreamSinkOptions{.token_ids = token_ids}, egress, call);
    engine::TokenDelta delta = Delta(0, "a");
    delta.token_ids = {5};
    sink->Put(std::move(delta));
    EXPECT_EQ(call.WaitForWrite(1).delta.token_ids.size(), token_ids ? 1u : 0u);
    call.EndWrite(*sink);
    sink->Finish(absl::OkStatus(), {});
    EXPECT_EQ(call.WaitForClose().code(), absl::StatusCode::kOk);
  }
}

// Writes end on other threads while a step thread puts deltas. The text of each sample must come
// out whole. No write ends before half of the text was put, so the sink must merge that half.
TEST(StreamSinkTest, NoDeltaIsLostOrDoubled) {
  constexpr int kStreams = 8;
  constexpr int kSamples = 3;
  constexpr int kTokens = 500;
  Egress egress;
  std::latch half_is_there(1);

  // A call whose writes another thread ends at once.
  class InstantCall : public StreamWriter {
   public:
    void Write(engine::TokenDelta delta, const engine::RequestSummary*) override {
      texts[delta.index] += delta.text;
      {
        base::MutexLock lock(mu);
        ++writes;
      }
      changed.NotifyAll();
    }
    void Close(const absl::Status& s, const engine::RequestSummary&) override {
      base::MutexLock lock(mu);
      status = s;
      closed = true;
      changed.NotifyAll();
    }
    void Abandon() override { ADD_FAILURE(); }

    std::map<int32_t, std::string> texts;  // read after the close
    base::Mutex mu;
    base::CondVar changed;
    int writes = 0;
    bool closed = false;
    absl::Status status;
  };

  std::vector<std::unique_ptr<InstantCall>> calls;
  std::vector<std::shared_ptr<StreamSink>> sinks;
  std::vector<std::thread> readers;
  for (int i = 0; i < kStreams; ++i) {
    calls.push_back(std::make_unique<InstantCall>());
    sinks.push_back(std::make_shared<StreamSink>(StreamSinkOptions{.num_samples = kSamples}, egress,
                                                 *calls.back()));
    readers.emplace_back([&half_is_there, &call = *calls.back(), sink = sinks.back()] {
      half_is_there.wait();
      for (int ended = 0;;) {
        {
          base::MutexLock lock(call.mu);
          while (call.writes == ended && !call.closed) {
            call.changed.WaitFor(call.mu, std::chrono::milliseconds(100));
          }
          if (call.writes == ended) return;
          ++ended;
        }
        sink->OnWriteDone(true);
      }
    });
  }
  std::string expected;
  for (int t = 0; t < kTokens; ++t) {
    if (t == kTokens / 2) half_is_there.count_down();
    const std::string text = absl::StrCat(t, " ");
    expected += text;
    for (const auto& sink : sinks) {
      for (int k = 0; k < kSamples; ++k) sink->Put(Delta(k, text, t + 1 == kTokens));
    }
  }
  for (const auto& sink : sinks) sink->Finish(absl::OkStatus(), {});
  for (std::thread& reader : readers) reader.join();
  int writes = 0;
  for (const auto& call : calls) {
    EXPECT_TRUE(call->status.ok());
    for (int k = 0; k < kSamples; ++k) EXPECT_EQ(call->texts[k], expected);
    writes += call->writes;
  }
  // In each stream, the first write of each sample may hold one token. The next write of each
  // sample holds the rest of the first half. The tokens of the second half may be written one by
  // one.
  EXPECT_LE(writes, kStreams * (kSamples + kSamples + kSamples * kTokens / 2));
  EXPECT_GE(writes, kStreams * kSamples);
}

// The test reads it after the egress thread has ended.
struct UnaryAnswer final : UnaryWriter {
  void Close(std::vector<engine::TokenDelta> s, const absl::Status& st,
             const engine::RequestSummary& sum) override {
    samples = std::move(s);
    status = st;
    summary = sum;
    ++closes;
  }

  std::atomic<int> closes = 0;
  std::vector<engine::TokenDelta> samples;
  absl::Status status;
  engine::RequestSummary summary;
};

TEST(UnarySinkTest, AnswersOnceWithWholeSamples) {
  UnaryAnswer answer;
  {
    Egress egress;
    auto sink = std::make_shared<UnarySink>(false, egress, answer);
    sink->Put(Delta(0, "a"));
    sink->Put(Delta(1, "x", true));
    sink->Put(Delta(0, "b", true));
    EXPECT_TRUE(sink->CanTake(1 << 20));
    sink->Finish(absl::OkStatus(), {.usage = {.prompt_tokens = 3}});
  }  // the destructor of Egress pumps the outlets that were woken
  EXPECT_EQ(answer.closes, 1);
  ASSERT_EQ(answer.samples.size(), 2u);
  EXPECT_EQ(answer.samples[0].text, "ab");
  EXPECT_EQ(answer.samples[1].text, "x");
  EXPECT_TRUE(answer.status.ok());
  EXPECT_EQ(answer.summary.usage.prompt_tokens, 3);
}

TEST(UnarySinkTest, ASecondFinishAnswersNothing) {
  UnaryAnswer answer;
  {
    Egress egress;
    auto sink = std::make_shared<UnarySink>(false, egress, answer);
    sink->Finish(absl::UnavailableError("the device hangs"), {});
    while (answer.closes == 0) std::this_thread::yield();
    sink->Finish(absl::OkStatus(), {});
  }
  EXPECT_EQ(answer.closes, 1);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace quire::server
