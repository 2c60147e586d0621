#pragma once

// A sink that records its deltas. Tests wait on it and read the record.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/request/token_sink.h"

namespace quire::testing {

class CollectingSink final : public engine::TokenSink {
 public:
  // The output of one sample, gathered from its deltas.
  struct Sample {
    std::string text;
    std::vector<int32_t> token_ids;
    std::vector<engine::PositionLogprobs> logprobs;
    engine::FinishReason finish_reason = engine::FinishReason::kNone;
    std::string stop_string;
    uint64_t seed = 0;
    std::optional<double> score;
    int64_t num_deltas = 0;
  };

  // The sink takes at most `room` deltas; -1: any number.
  explicit CollectingSink(int64_t room = -1) : room_(room) {}

  bool CanTake(int32_t num_deltas) const override {
    base::MutexLock lock(mu_);
    return room_ < 0 || num_deltas_ + num_deltas <= room_;
  }
  void SetOnRoom(std::function<void()> on_room) override {
    base::MutexLock lock(mu_);
    on_room_ = std::move(on_room);
  }

  void Put(engine::TokenDelta delta) override {
    base::MutexLock lock(mu_);
    if (finished_) ++num_after_finish_;
    ++num_deltas_;
    Sample& sample = samples_[delta.index];
    ++sample.num_deltas;
    sample.text += delta.text;
    sample.token_ids.insert(sample.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    sample.logprobs.insert(sample.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    prompt_logprobs_.insert(prompt_logprobs_.end(), delta.prompt_logprobs.begin(),
                            delta.prompt_logprobs.end());
    if (!delta.prompt_logprobs.empty()) ++num_prompt_chunks_;
    if (delta.usage) usages_.push_back(*delta.usage);
    if (delta.finish_reason != engine::FinishReason::kNone)
      sample.finish_reason = delta.finish_reason;
    if (!delta.stop_string.empty()) sample.stop_string = delta.stop_string;
    sample.seed = delta.seed;
    if (delta.score) sample.score = delta.score;
    changed_.NotifyAll();
  }

  void Finish(const absl::Status& status, const engine::RequestSummary& summary) override {
    base::MutexLock lock(mu_);
    if (finished_) ++num_after_finish_;
    finished_ = true;
    status_ = status;
    summary_ = summary;
    changed_.NotifyAll();
  }

  // Waits for Finish. Returns false when that takes longer than half a minute.
  bool WaitFinished() {
    base::MutexLock lock(mu_);
    return WaitUntil([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return finished_; });
  }
  bool WaitDeltas(int64_t count) {
    base::MutexLock lock(mu_);
    return WaitUntil([this, count]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return num_deltas_ >= count; });
  }
  void SetRoom(int64_t room) {
    std::function<void()> on_room;
    {
      base::MutexLock lock(mu_);
      room_ = room;
      on_room = on_room_;
    }
    if (on_room) on_room();
  }

  bool finished() const { return Locked(finished_); }
  // The results are complete once WaitFinished has returned true.
  absl::Status status() const { return Locked(status_); }
  engine::RequestSummary summary() const { return Locked(summary_); }
  Sample sample(int32_t index = 0) const {
    base::MutexLock lock(mu_);
    const auto it = samples_.find(index);
    return it == samples_.end() ? Sample{} : it->second;
  }
  std::vector<engine::PositionLogprobs> prompt_logprobs() const { return Locked(prompt_logprobs_); }
  int64_t num_prompt_chunks() const { return Locked(num_prompt_chunks_); }
  // The Usage of each delta that had one.
  std::vector<engine::Usage> usages() const { return Locked(usages_); }
  int64_t num_deltas() const { return Locked(num_deltas_); }
  // The number of calls that came after Finish. It must be 0.
  int64_t num_after_finish() const { return Locked(num_after_finish_); }

 private:
  template <typename T>
  T Locked(const T& member) const {
    base::MutexLock lock(mu_);
    return member;
  }
  template <typename Condition>
  bool WaitUntil(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      changed_.WaitFor(mu_, std::chrono::milliseconds(100));
    }
    return true;
  }

  mutable base::Mutex mu_;
  base::CondVar changed_;
  int64_t room_;
  std::function<void()> on_room_;
  std::map<int32_t, Sample> samples_;
  std::vector<engine::PositionLogprobs> prompt_logprobs_;
  int64_t num_prompt_chunks_ = 0;
  std::vector<engine::Usage> usages_;
  int64_t num_deltas_ = 0;
  bool finished_ = false;
  int64_t num_after_finish_ = 0;
  absl::Status status_;
  engine::RequestSummary summary_;
};

}  // namespace quire::testing
