#pragma once

// The way out: what the step thread puts into a sink, the egress thread writes to its call.
//
// A message costs far more than a token in it, and the step thread must not pay either: so a sink
// only collects, and one thread starts the writes. One write is in flight a stream; what waits
// behind it goes out together. A reader that does not read leaves its write in flight, its sink
// fills, and the engine stops planning that request: nobody else notices.
//
// Knows no gRPC: calls are seen through StreamWriter and UnaryWriter.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/heartbeat.h"
#include "base/mutex.h"
#include "engine/request/token_sink.h"
#include "server/delta_buffer.h"

namespace quire::server {

// The egress thread. Must outlive every sink's last call, that is, every call that a sink serves.
class Egress {
 public:
  // Something with work for the egress thread.
  class Outlet {
   public:
    virtual ~Outlet() = default;

   private:
    friend class Egress;
    // On the egress thread; does what can be done now, without waiting.
    virtual void Pump() = 0;

    std::atomic<bool> woken_ = false;  // is in Egress::woken_
  };

  Egress();
  ~Egress();  // joins; what was woken before is pumped first
  Egress(const Egress&) = delete;
  Egress& operator=(const Egress&) = delete;

  // Since the thread began the pump that it is in; zero: it waits for work.
  absl::Duration busy_for() const { return heartbeat_.busy_for(); }

  // Pumps `outlet` soon. From any thread, cheap; several calls before the pump are one.
  void Wake(std::shared_ptr<Outlet> outlet);
  // Pumps it after `delay` if it still exists. From any thread; always the same delay.
  void WakeAfter(std::weak_ptr<Outlet> outlet, absl::Duration delay);

 private:
  struct Alarm {
    absl::Time due;
    std::weak_ptr<Outlet> outlet;
  };

  void Run();
  // What is to be pumped now; waits for it. False: stopping, and nothing is left.
  bool WaitForWork(std::vector<std::shared_ptr<Outlet>>& work);

  base::Mutex mu_;
  base::CondVar work_or_stop_;
  std::vector<std::shared_ptr<Outlet>> woken_ ABSL_GUARDED_BY(mu_);
  std::deque<Alarm> alarms_ ABSL_GUARDED_BY(mu_);  // soonest first
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  base::Heartbeat heartbeat_;
  std::thread thread_;  // last: it uses the others
};

// A server-streaming call. Called by the egress thread alone.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  // Starts a write; StreamSink::OnWriteDone follows. `summary` comes with the last message.
  virtual void Write(engine::TokenDelta delta, const engine::RequestSummary* summary) = 0;
  // Ends the call; the last of these calls. The writer may be gone when it returns.
  virtual void Close(const absl::Status& status, const engine::RequestSummary& summary) = 0;
  // The reader does not take the write in flight: gives the call up, so that the write fails.
  virtual void Abandon() = 0;
};

struct StreamSinkOptions {
  int32_t num_samples = 1;
  bool token_ids = false;  // whether they are sent
  // What may wait behind a write in flight.
  int64_t max_deltas = 256;
  int64_t max_bytes = 1 << 20;
  // How long a reader may take for the rest, once the request has ended.
  absl::Duration linger = absl::Seconds(30);
};

class StreamSink : public engine::TokenSink,
                   public Egress::Outlet,
                   public std::enable_shared_from_this<StreamSink> {
 public:
  // `egress` must outlive the call; `writer` lives until its Close.
  StreamSink(const StreamSinkOptions& options, Egress& egress, StreamWriter& writer);

  bool CanTake(int32_t num_deltas) const override;
  void SetOnRoom(std::function<void()> on_room) override { on_room_ = std::move(on_room); }
  void Put(engine::TokenDelta delta) override;
  void Finish(const absl::Status& status, const engine::RequestSummary& summary) override;

  // The write in flight has ended; !ok: the reader is gone, and nothing more is written.
  void OnWriteDone(bool ok);

 private:
  void Pump() override;

  const StreamSinkOptions options_;  // constant
  Egress& egress_;                   // not owned
  StreamWriter& writer_;             // not owned
  std::function<void()> on_room_;    // constant once submitted

  std::deque<engine::TokenDelta> outgoing_;  // egress thread only: taken, not yet written
  bool closed_ = false;                      // egress thread only
  bool lingering_ = false;                   // egress thread only: the alarm is set
  absl::Time abandon_at_;                    // egress thread only

  mutable base::Mutex mu_;
  DeltaBuffer waiting_ ABSL_GUARDED_BY(mu_);
  mutable bool room_is_wanted_ ABSL_GUARDED_BY(mu_) = false;  // CanTake said no
  int32_t num_ended_ ABSL_GUARDED_BY(mu_) = 0;                // samples
  bool write_in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool reader_gone_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  engine::RequestSummary summary_ ABSL_GUARDED_BY(mu_);
};

// Gives a call up whose answer, one message, its client does not take: until then gRPC keeps it.
class AnswerLinger final : public Egress::Outlet,
                           public std::enable_shared_from_this<AnswerLinger> {
 public:
  // `egress` must outlive this; `abandon` only starts what ends the call.
  AnswerLinger(Egress& egress, absl::Duration linger, std::function<void()> abandon)
      : egress_(egress), linger_(linger), abandon_(std::move(abandon)) {}

  // From any thread, before the answer is handed to gRPC.
  void Answered() { egress_.WakeAfter(weak_from_this(), linger_); }
  // The call has ended: `abandon` is not called from now on.
  void Done();

 private:
  void Pump() override;

  Egress& egress_;                       // not owned
  const absl::Duration linger_;          // constant
  const std::function<void()> abandon_;  // constant

  base::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

// A unary call. Called by the egress thread alone.
class UnaryWriter {
 public:
  virtual ~UnaryWriter() = default;
  // Answers with every sample whole. The writer may be gone when it returns.
  virtual void Close(std::vector<engine::TokenDelta> samples, const absl::Status& status,
                     const engine::RequestSummary& summary) = 0;
};

// Collects whole samples; bounded by what the request may generate (answers_at_once).
class UnarySink : public engine::TokenSink,
                  public Egress::Outlet,
                  public std::enable_shared_from_this<UnarySink> {
 public:
  // As StreamSink. `token_ids`: whether they are sent.
  UnarySink(bool token_ids, Egress& egress, UnaryWriter& writer);

  bool CanTake(int32_t) const override { return true; }
  void Put(engine::TokenDelta delta) override;
  void Finish(const absl::Status& status, const engine::RequestSummary& summary) override;

 private:
  void Pump() override;

  const bool token_ids_;  // constant
  Egress& egress_;        // not owned
  UnaryWriter& writer_;   // not owned

  base::Mutex mu_;
  DeltaBuffer samples_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  engine::RequestSummary summary_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server
