#include "server/call/egress.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace quire::server {
namespace {

constexpr absl::Duration kIdleWait = absl::Seconds(60);  // every wait has a deadline

}  // namespace

Egress::Egress() : thread_([this] { Run(); }) {}

Egress::~Egress() {
  {
    base::MutexLock lock(mu_);
    stopping_ = true;
  }
  work_or_stop_.NotifyOne();
  thread_.join();
}

void Egress::Wake(std::shared_ptr<Outlet> outlet) {
  if (outlet->woken_.exchange(true, std::memory_order_acq_rel)) return;
  bool was_empty = false;
  {
    base::MutexLock lock(mu_);
    was_empty = woken_.empty();
    woken_.push_back(std::move(outlet));
  }
  if (was_empty) work_or_stop_.NotifyOne();  // otherwise the thread has been notified already
}

void Egress::WakeAfter(std::weak_ptr<Outlet> outlet, absl::Duration delay) {
  bool was_empty = false;
  {
    base::MutexLock lock(mu_);
    was_empty = alarms_.empty();
    alarms_.push_back({.due = base::SteadyNow() + delay, .outlet = std::move(outlet)});
  }
  if (was_empty) work_or_stop_.NotifyOne();
}

void Egress::Post(std::function<void()> work) {
  class Posted final : public Outlet {
   public:
    explicit Posted(std::function<void()> work) : work_(std::move(work)) {}

   private:
    void Pump() override { work_(); }

    const std::function<void()> work_;
  };
  Wake(std::make_shared<Posted>(std::move(work)));
}

bool Egress::WaitForWork(std::vector<std::shared_ptr<Outlet>>& work) {
  base::MutexLock lock(mu_);
  while (true) {
    const absl::Time now = base::SteadyNow();
    while (!alarms_.empty() && alarms_.front().due <= now) {
      if (auto outlet = alarms_.front().outlet.lock()) woken_.push_back(std::move(outlet));
      alarms_.pop_front();
    }
    if (!woken_.empty()) {
      work.swap(woken_);
      return true;
    }
    if (stopping_) return false;
    const absl::Duration wait = alarms_.empty() ? kIdleWait : alarms_.front().due - now;
    work_or_stop_.WaitFor(mu_, absl::ToChronoNanoseconds(wait));
  }
}

void Egress::Run() {
  std::vector<std::shared_ptr<Outlet>> work;
  while (WaitForWork(work)) {
    for (const std::shared_ptr<Outlet>& outlet : work) {
      const base::Busy busy(heartbeat_);
      outlet->woken_.store(false, std::memory_order_release);
      outlet->Pump();
    }
    work.clear();
  }
}

StreamSink::StreamSink(const StreamSinkOptions& options, Egress& egress, StreamWriter& writer)
    : options_(options), egress_(egress), writer_(writer) {}

bool StreamSink::CanTake(int32_t num_deltas) const {
  base::MutexLock lock(mu_);
  // An empty buffer takes any number of deltas, even more than max_deltas. Otherwise a request that
  // adds more than max_deltas in one step would wait for ever. After the reader has disconnected,
  // Put drops all deltas, so CanTake returns true.
  if (waiting_.empty() || reader_gone_) return true;
  const bool full = waiting_.num_deltas() + num_deltas > options_.max_deltas ||
                    waiting_.num_bytes() >= options_.max_bytes;
  room_is_wanted_ = room_is_wanted_ || full;
  return !full;
}

void StreamSink::Put(engine::TokenDelta delta) {
  if (!options_.token_ids) delta.token_ids.clear();
  {
    base::MutexLock lock(mu_);
    if (delta.finish_reason != engine::FinishReason::kNone) ++num_ended_;
    if (reader_gone_) return;
    waiting_.Add(std::move(delta));
    if (write_in_flight_) return;  // the write's end wakes the egress thread
  }
  egress_.Wake(shared_from_this());
}

void StreamSink::Finish(const absl::Status& status, const engine::RequestSummary& summary) {
  {
    base::MutexLock lock(mu_);
    finished_ = true;
    status_ = status;
    summary_ = summary;
  }
  egress_.Wake(shared_from_this());
}

void StreamSink::OnWriteDone(bool ok) {
  bool has_room = false;
  {
    base::MutexLock lock(mu_);
    write_in_flight_ = false;
    if (!ok) {
      reader_gone_ = true;
      waiting_.Take();
      has_room = std::exchange(room_is_wanted_, false);
    }
  }
  if (has_room && on_room_) on_room_();
  egress_.Wake(shared_from_this());
}

void StreamSink::Pump() {
  if (closed_) return;
  absl::Status status;
  engine::RequestSummary summary;
  bool finished = false;
  bool stuck = false;
  bool more_waiting = false;
  bool has_room = false;
  {
    base::MutexLock lock(mu_);
    finished = finished_;
    status = status_;
    summary = summary_;
    stuck = write_in_flight_;
    if (reader_gone_) outgoing_.clear();
    // Holds the last sample's last message back until Finish, which follows soon. The message can
    // then carry the summary.
    const bool summary_at_hand = num_ended_ == options_.num_samples && !finished_;
    if (!stuck && outgoing_.empty() && !summary_at_hand) {
      std::vector<engine::TokenDelta> taken = waiting_.Take();
      std::move(taken.begin(), taken.end(), std::back_inserter(outgoing_));
      has_room = std::exchange(room_is_wanted_, false);
    }
    more_waiting = !waiting_.empty();
    write_in_flight_ = stuck || !outgoing_.empty();
  }
  if (has_room && on_room_) on_room_();
  if (stuck) {
    if (!finished) return;
    if (!lingering_) {
      lingering_ = true;
      abandon_at_ = base::SteadyNow() + options_.linger;
      egress_.WakeAfter(weak_from_this(), options_.linger);
    } else if (base::SteadyNow() >= abandon_at_) {
      writer_.Abandon();
    }
    return;
  }
  if (!outgoing_.empty()) {
    engine::TokenDelta delta = std::move(outgoing_.front());
    outgoing_.pop_front();
    const bool last = finished && outgoing_.empty() && !more_waiting;
    writer_.Write(std::move(delta), last ? &summary : nullptr);
    return;
  }
  if (finished) {
    closed_ = true;
    writer_.Close(status, summary);
  }
}

void AnswerLinger::Done() {
  base::MutexLock lock(mu_);
  done_ = true;
}

void AnswerLinger::Pump() {
  base::MutexLock lock(mu_);  // the call exists until Done
  if (!done_) abandon_();
}

UnarySink::UnarySink(bool token_ids, Egress& egress, UnaryWriter& writer)
    : token_ids_(token_ids), egress_(egress), writer_(writer) {}

void UnarySink::Put(engine::TokenDelta delta) {
  if (!token_ids_) delta.token_ids.clear();
  base::MutexLock lock(mu_);
  samples_.Add(std::move(delta));
}

void UnarySink::Finish(const absl::Status& status, const engine::RequestSummary& summary) {
  {
    base::MutexLock lock(mu_);
    status_ = status;
    summary_ = summary;
  }
  egress_.Wake(shared_from_this());
}

void UnarySink::Pump() {
  if (std::exchange(closed_, true)) return;
  std::vector<engine::TokenDelta> samples;
  absl::Status status;
  engine::RequestSummary summary;
  {
    base::MutexLock lock(mu_);
    samples = samples_.Take();
    status = status_;
    summary = summary_;
  }
  writer_.Close(std::move(samples), status, summary);
}

}  // namespace quire::server
