#include "server/call/batch.h"

#include <utility>

#include "base/clock.h"

namespace quire::server {
class Batch::Item final : public UnaryWriter {
 public:
  Item(Batch& batch, int32_t index) : batch_(batch), index_(index) {}

  // Destroys this object.
  void Close(std::vector<engine::TokenDelta> samples, const absl::Status& status,
             const engine::RequestSummary& summary) override {
    batch_.TakeEnd(
        {.index = index_, .status = status, .samples = std::move(samples), .summary = summary});
  }

  std::shared_ptr<engine::SubmittedRequest> submitted;

 private:
  Batch& batch_;  // closes only after every item has ended
  const int32_t index_;
};

Batch::Batch(const BatchOptions& options, Egress& egress, BatchWriter& writer)
    : options_(options), egress_(egress), writer_(writer) {}

Batch::~Batch() = default;

void Batch::Cancel() {
  cancelled_.store(true, std::memory_order_release);
  egress_.Wake(shared_from_this());
}

void Batch::OnWriteDone(bool ok) {
  if (!ok) cancelled_.store(true, std::memory_order_release);
  write_done_.store(true, std::memory_order_release);
  egress_.Wake(shared_from_this());
}

void Batch::Pump() {
  if (closed_) return;
  if (write_done_.exchange(false, std::memory_order_acq_rel)) writing_ = false;
  const bool cancelled = cancelled_.load(std::memory_order_acquire);
  if (cancelled) {
    unsent_.clear();
    next_ = options_.num_requests;
    if (!std::exchange(has_cancelled_, true)) {
      for (const auto& [index, item] : running_) item->submitted->Cancel();
    }
  }
  SubmitSome();
  if (writing_) return CheckReader();
  if (!unsent_.empty()) {
    BatchAnswer answer = std::move(unsent_.front());
    unsent_.pop_front();
    writing_ = true;
    write_began_ = base::SteadyNow();
    writer_.Write(std::move(answer));
    return CheckReader();
  }
  if (running_.empty() && next_ == options_.num_requests) {
    closed_ = true;
    writer_.Close(cancelled ? engine::CancelledStatus() : absl::OkStatus(), total_);
  }
}

void Batch::SubmitSome() {
  const auto num_unanswered = [this] {
    return std::ssize(running_) + std::ssize(unsent_) + (writing_ ? 1 : 0);
  };
  for (; next_ < options_.num_requests && num_unanswered() < options_.max_in_flight; ++next_) {
    auto item = std::make_unique<Item>(*this, next_);
    auto submitted = writer_.Submit(
        next_, std::make_shared<UnarySink>(writer_.HasTokenIds(next_), egress_, *item));
    if (submitted.ok()) {
      item->submitted = *std::move(submitted);
      running_.emplace(next_, std::move(item));
    } else if (absl::IsResourceExhausted(submitted.status()) && !running_.empty()) {
      return;  // the end of a running one calls this again
    } else {
      unsent_.push_back({.index = next_, .status = submitted.status()});
    }
  }
}

void Batch::TakeEnd(BatchAnswer answer) {
  total_.usage += answer.summary.usage;
  running_.erase(answer.index);
  unsent_.push_back(std::move(answer));
  Pump();
}

// One alarm serves all writes of its time. It pumps, which calls this again if a write is in
// flight.
void Batch::CheckReader() {
  const absl::Time now = base::SteadyNow();
  if (now - write_began_ >= options_.linger) return writer_.Abandon();
  if (now < alarm_at_) return;
  alarm_at_ = now + options_.linger;
  egress_.WakeAfter(weak_from_this(), options_.linger);
}

}  // namespace quire::server
