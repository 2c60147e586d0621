#include "server/call/batch.h"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/mutex.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

// The call of a batch, and the engine. Requests and writes end only when the test ends them.
class FakeBatch final : public BatchWriter {
 public:
  struct Submitted final : engine::SubmittedRequest {
    const std::string& request_id() const override { return id; }
    void Cancel() override { on_cancel(); }

    std::string id;
    std::function<void()> on_cancel;
  };

  absl::StatusOr<std::shared_ptr<engine::SubmittedRequest>> Submit(
      int32_t index, std::shared_ptr<engine::TokenSink> sink) override {
    base::MutexLock lock(mu_);
    ++num_tries_;
    changed_.NotifyAll();
    if (const auto it = refused_.find(index); it != refused_.end()) return it->second;
    sinks_[index] = std::move(sink);
    most_unanswered_ = std::max(most_unanswered_, sinks_.size() + num_ended_ - num_written_);
    auto submitted = std::make_shared<Submitted>();
    submitted->on_cancel = [this, index] {
      base::MutexLock cancel_lock(mu_);
      cancelled_.insert(index);
      changed_.NotifyAll();
    };
    return submitted;
  }
  bool HasTokenIds(int32_t) const override { return true; }
  void Write(BatchAnswer answer) override {
    base::MutexLock lock(mu_);
    EXPECT_FALSE(in_flight_) << "two writes in flight";
    EXPECT_FALSE(closed_) << "a write after the end";
    in_flight_ = true;
    answers_.push_back(std::move(answer));
    changed_.NotifyAll();
  }
  void Close(const absl::Status& status, const engine::RequestSummary& total) override {
    base::MutexLock lock(mu_);
    EXPECT_FALSE(closed_) << "closed twice";
    EXPECT_FALSE(in_flight_) << "closed under a write";
    EXPECT_TRUE(sinks_.empty()) << "closed before its requests ended";
    closed_ = true;
    status_ = status;
    total_ = total;
    changed_.NotifyAll();
  }
  void Abandon() override {
    base::MutexLock lock(mu_);
    abandoned_ = true;
    changed_.NotifyAll();
  }

  void Refuse(int32_t index, absl::Status status) {
    base::MutexLock lock(mu_);
    refused_[index] = std::move(status);
  }
  void Accept(int32_t index) {
    base::MutexLock lock(mu_);
    refused_.erase(index);
  }
  // Ends a request that runs, with one token.
  void End(int32_t index, const absl::Status& status = absl::OkStatus()) {
    std::shared_ptr<engine::TokenSink> sink;
    {
      base::MutexLock lock(mu_);
      sink = std::move(sinks_[index]);
      sinks_.erase(index);
      ++num_ended_;
    }
    sink->Put({.token_ids = {index}, .finish_reason = engine::FinishReason::kLength});
    engine::RequestSummary summary;
    summary.usage.completion_tokens = 1;
    summary.usage.prefix_tokens = 2;
    summary.usage.block_copies = 5;
    sink->Finish(status, summary);
  }
  void EndWrite(Batch& batch, bool ok = true) {
    {
      base::MutexLock lock(mu_);
      in_flight_ = false;
      ++num_written_;
    }
    batch.OnWriteDone(ok);
  }
  // Returns the indices of the requests that run, when there are `count`.
  std::vector<int32_t> WaitForRunning(size_t count) {
    base::MutexLock lock(mu_);
    Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return sinks_.size() == count; });
    std::vector<int32_t> running;
    for (const auto& [index, sink] : sinks_) running.push_back(index);
    return running;
  }
  BatchAnswer WaitForWrite(size_t count) {
    base::MutexLock lock(mu_);
    Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return answers_.size() == count; });
    return answers_.size() == count ? answers_.back() : BatchAnswer{};
  }
  void WaitForTries(int count) {
    base::MutexLock lock(mu_);
    Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return num_tries_ >= count; });
  }
  std::set<int32_t> WaitForCancelled(size_t count) {
    base::MutexLock lock(mu_);
    Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return cancelled_.size() == count; });
    return cancelled_;
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
  size_t most_unanswered() {
    base::MutexLock lock(mu_);
    return most_unanswered_;
  }
  int num_tries() {
    base::MutexLock lock(mu_);
    return num_tries_;
  }
  engine::Usage total() {
    base::MutexLock lock(mu_);
    return total_.usage;
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
  std::map<int32_t, std::shared_ptr<engine::TokenSink>> sinks_ ABSL_GUARDED_BY(mu_);
  std::map<int32_t, absl::Status> refused_ ABSL_GUARDED_BY(mu_);
  std::set<int32_t> cancelled_ ABSL_GUARDED_BY(mu_);
  std::vector<BatchAnswer> answers_ ABSL_GUARDED_BY(mu_);
  size_t num_ended_ ABSL_GUARDED_BY(mu_) = 0;
  size_t num_written_ ABSL_GUARDED_BY(mu_) = 0;
  size_t most_unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  int num_tries_ ABSL_GUARDED_BY(mu_) = 0;
  bool in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  engine::RequestSummary total_ ABSL_GUARDED_BY(mu_);
};

std::shared_ptr<Batch> Start(const BatchOptions& options, Egress& egress, FakeBatch& call) {
  auto batch = std::make_shared<Batch>(options, egress, call);
  batch->Start();
  return batch;
}

TEST(BatchTest, AnswersAsRequestsEnd) {
  Egress egress;
  FakeBatch call;
  const auto batch = Start({.num_requests = 3, .max_in_flight = 8}, egress, call);
  call.WaitForRunning(3);
  call.End(2);
  BatchAnswer answer = call.WaitForWrite(1);
  EXPECT_EQ(answer.index, 2);
  EXPECT_THAT(answer.samples.at(0).token_ids, ElementsAre(2));
  call.EndWrite(*batch);
  call.End(0, absl::InternalError("broken"));
  answer = call.WaitForWrite(2);
  EXPECT_EQ(answer.index, 0);
  EXPECT_EQ(answer.status.message(), "broken");
  call.EndWrite(*batch);
  call.End(1);
  EXPECT_EQ(call.WaitForWrite(3).index, 1);
  call.EndWrite(*batch);
  EXPECT_TRUE(call.WaitForClose().ok());
  EXPECT_EQ(call.total().completion_tokens, 3);
  EXPECT_EQ(call.total().prefix_tokens, 6);
  EXPECT_EQ(call.total().block_copies, 15);
}

TEST(BatchTest, RunningAndUnreadAnswersAreBounded) {
  constexpr int32_t kRequests = 12;
  Egress egress;
  FakeBatch call;
  const auto batch = Start({.num_requests = kRequests, .max_in_flight = 3}, egress, call);
  EXPECT_THAT(call.WaitForRunning(3), ElementsAre(0, 1, 2));
  // The client reads nothing. So what ends makes no room.
  call.End(0);
  call.WaitForWrite(1);
  call.End(1);
  EXPECT_THAT(call.WaitForRunning(1), ElementsAre(2));
  EXPECT_EQ(call.num_tries(), 3);
  call.EndWrite(*batch);
  EXPECT_EQ(call.WaitForWrite(2).index, 1);
  EXPECT_THAT(call.WaitForRunning(2), ElementsAre(2, 3));
  for (size_t written = 2; written < kRequests; ++written) {
    call.EndWrite(*batch);
    call.End(static_cast<int32_t>(written));
    EXPECT_EQ(call.WaitForWrite(written + 1).index, static_cast<int32_t>(written));
    if (written + 1 < kRequests) call.WaitForRunning(std::min<size_t>(2, kRequests - written - 1));
  }
  call.EndWrite(*batch);
  EXPECT_TRUE(call.WaitForClose().ok());
  EXPECT_EQ(call.most_unanswered(), 3u);
}

TEST(BatchTest, ARefusedRequestWaitsForOneOfItsOwn) {
  Egress egress;
  FakeBatch call;
  call.Refuse(1, absl::ResourceExhaustedError("the queue is full"));
  const auto batch = Start({.num_requests = 3, .max_in_flight = 3}, egress, call);
  call.WaitForTries(2);
  EXPECT_THAT(call.WaitForRunning(1), ElementsAre(0));
  call.Accept(1);
  call.End(0);
  call.WaitForWrite(1);
  call.EndWrite(*batch);
  EXPECT_THAT(call.WaitForRunning(2), ElementsAre(1, 2));
  call.End(1);
  EXPECT_TRUE(call.WaitForWrite(2).status.ok());
  call.EndWrite(*batch);
  call.End(2);
  call.WaitForWrite(3);
  call.EndWrite(*batch);
  EXPECT_TRUE(call.WaitForClose().ok());
}

TEST(BatchTest, ARefusalIsTheAnswerWhenNoneOfItsOwnIsLeft) {
  Egress egress;
  FakeBatch call;
  call.Refuse(0, absl::ResourceExhaustedError("the queue is full"));
  call.Refuse(1, absl::InvalidArgumentError("sampling.n: want 1..64, got 0"));
  const auto batch = Start({.num_requests = 3, .max_in_flight = 1}, egress, call);
  EXPECT_TRUE(absl::IsResourceExhausted(call.WaitForWrite(1).status));
  call.EndWrite(*batch);
  EXPECT_TRUE(absl::IsInvalidArgument(call.WaitForWrite(2).status));
  call.EndWrite(*batch);
  EXPECT_THAT(call.WaitForRunning(1), ElementsAre(2));
  call.End(2);
  EXPECT_TRUE(call.WaitForWrite(3).status.ok());
  call.EndWrite(*batch);
  EXPECT_TRUE(call.WaitForClose().ok());
}

TEST(BatchTest, CancelEndsAllAndStartsNoMore) {
  Egress egress;
  FakeBatch call;
  const auto batch = Start({.num_requests = 9, .max_in_flight = 4}, egress, call);
  call.WaitForRunning(4);
  call.End(3);
  call.WaitForWrite(1);
  batch->Cancel();
  EXPECT_THAT(call.WaitForCancelled(3), UnorderedElementsAre(0, 1, 2));
  for (const int32_t index : {0, 1, 2}) call.End(index, absl::CancelledError("cancelled"));
  call.EndWrite(*batch, /*ok=*/false);
  EXPECT_TRUE(absl::IsCancelled(call.WaitForClose()));
  EXPECT_EQ(call.num_tries(), 4);
}

TEST(BatchTest, AClientThatIsGoneCancels) {
  Egress egress;
  FakeBatch call;
  const auto batch = Start({.num_requests = 2, .max_in_flight = 2}, egress, call);
  call.WaitForRunning(2);
  call.End(0);
  call.WaitForWrite(1);
  call.EndWrite(*batch, /*ok=*/false);
  EXPECT_THAT(call.WaitForCancelled(1), UnorderedElementsAre(1));
  call.End(1, absl::CancelledError("cancelled"));
  EXPECT_TRUE(absl::IsCancelled(call.WaitForClose()));
}

TEST(BatchTest, AClientThatNeverReadsIsGivenUp) {
  Egress egress;
  FakeBatch call;
  const auto batch = Start(
      {.num_requests = 1, .max_in_flight = 1, .linger = absl::Milliseconds(20)}, egress, call);
  call.WaitForRunning(1);
  call.End(0);
  call.WaitForWrite(1);
  call.WaitForAbandon();
  call.EndWrite(*batch, /*ok=*/false);
  EXPECT_TRUE(absl::IsCancelled(call.WaitForClose()));
}

}  // namespace
}  // namespace quire::server
